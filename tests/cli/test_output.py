"""The output of values, errors and differences."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
import typer

from evertide.cli.commands.demo import read_demo_script
from evertide.cli.output.output import report_errors
from evertide.cli.recompute import compare_view
from evertide.errors import CheckpointDamaged, Conflict, EvertideError, Fenced
from evertide.formats import format_bytes, format_seconds, format_value
from evertide.json_values import to_json_value
from evertide.pipeline.status.report import format_lag
from evertide.sources.contract import Lag


def test_json_keeps_its_own_types_and_writes_others_as_text() -> None:
    row = {"d": Decimal("1.10"), "t": datetime(2026, 1, 2, tzinfo=UTC), "b": b"\x00", "n": float("nan"), "x": (1, None)}
    found = json.loads(json.dumps(to_json_value(row), allow_nan=False))
    assert found == {"d": "1.10", "t": "2026-01-02T00:00:00+00:00", "b": "AA==", "n": "nan", "x": [1, None]}
    assert (format_value(None), format_value({"a": Decimal(1)}), format_value(2.5)) == ("NULL", '{"a": "1"}', "2.5")


def test_sizes_are_printed_in_units() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1,023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


def test_durations_are_printed_in_two_units() -> None:
    assert [format_seconds(each) for each in (0, 0.26, 59.9, 60, 75.5, 3600, 90_061)] == [
        "0 s",
        "0.3 s",
        "59.9 s",
        "1 min",
        "1 min 15 s",
        "1 h",
        "1 d 1 h",
    ]


def test_only_known_parts_of_a_lag_are_printed() -> None:
    assert format_lag(None) == format_lag(Lag()) == "-"
    assert format_lag(Lag(bytes=0, seconds=0.0)) == "0 B, 0 s"
    assert format_lag(Lag(bytes=2048, rows=1234, files=2, seconds=1.5)) == "2.0 KiB, 1,234 rows, 2 files, 1.5 s"


@pytest.mark.parametrize(
    "error",
    [
        Conflict(where="a\nb", why="two\nlines"),
        Fenced(writer="w", why="gone"),
        CheckpointDamaged(path="p", why="w", files="f"),
    ],
)
def test_every_error_is_one_line_with_its_exit_code(error: EvertideError, capsys: pytest.CaptureFixture[str]) -> None:
    @report_errors
    def failing(*, is_json: bool) -> None:
        raise error

    for is_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            failing(is_json=is_json)
        assert ended.value.exit_code == error.exit_code
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
    assert json.loads(err)["error_code"] == error.error_code


def test_an_interruption_is_reported_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    @report_errors
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        interrupted()
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "evertide: interrupted\n")


def test_multisets_are_compared_with_counts_and_approximate_floats() -> None:
    held = pa.table({"k": [1, 1, 2], "x": [0.1 + 0.2, float("nan"), 5.0]})
    assert compare_view("v", held, pa.table({"key": [2, 1, 1], "y": [5.0, 0.3, float("nan")]})).is_same
    found = compare_view("v", held, pa.table({"k": [1, 2, 2], "x": [0.3, 5.0, 5.0]}))
    assert (found.surplus, found.missing) == (((1, "NaN"),), ((2, 5.0),))
    assert not compare_view("v", held, held.slice(1)).is_same
    assert not compare_view("v", held, pa.table({"k": [1, 1, 2], "x": [0.3001, float("nan"), 5.0]})).is_same


def test_the_demo_runs_at_the_given_rate() -> None:
    assert "rate '0'" in read_demo_script(0)
    assert "rate '2000'" in read_demo_script(2000)
    assert "rate '2000'" not in read_demo_script(1.5)
