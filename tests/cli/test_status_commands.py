"""`status`, `journal`, `checkpoints` from the storage alone, and the output of errors."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from evertide.cli import main as command
from evertide.cli.output.live_display import LiveDisplay
from evertide.cli.output.output import Output
from evertide.journal.records import Input
from evertide.pipeline.input.source_positions import read_positions
from evertide.pipeline.reading.reader import StorageReader
from evertide.problem import ComponentState, Problem
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.contract import Lag
from evertide.store.open import open_storage
from tests.cli.kit import document, evertide, lines, make_storage, one_error, open_small, order
from tests.pipeline.kit import ORDERS, CandidSource, batch, with_sources


def test_status_of_a_stopped_pipeline(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    found = document(evertide("status", "--storage", tmp_path / "s", "--json"))
    assert (found["state"], found["why"]) == ("stopped", "no process runs the pipeline")
    assert (found["time"], found["bound"], found["pid"]) == (3, 3, 0)
    by_name = {one["name"]: one for one in found["collections"]}
    assert by_name["orders"]["kind"] == "table"
    assert by_name["orders"]["rows"] == 3
    assert {one["state"] for one in found["collections"]} == {"stopped"}
    assert (by_name["revenue"]["kind"], by_name["revenue"]["upper"]) == ("view", 4)
    assert found["checkpoints"][0]["time"] == 4
    assert [source["name"] for source in found["sources"]] == ["push"]


def test_status_for_people_names_collections_sources_and_checkpoints(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    result = evertide("status", "--storage", tmp_path / "s")
    assert result.exit_code == 0
    assert result.stdout.startswith("stopped since 20")
    for word in ("orders", "revenue", "evertide_errors", "push", "Checkpoints"):
        assert word in result.stdout


def test_status_names_the_running_process_without_disturbing_it(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as p:
        found = document(evertide("status", "--storage", tmp_path / "s", "--json"))
        assert (found["state"], found["host"], found["pid"]) == ("running", socket.gethostname(), os.getpid())
        p.push("orders", [order(1)])
        assert p.commit() == 1  # not fenced


def test_status_of_a_view_that_failed_says_why(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", "revenue", "share") as p:
        p.push("orders", [order(1, amount=0)])
        p.commit()
    found = document(evertide("status", "--storage", tmp_path / "s", "--json"))
    share = next(one for one in found["collections"] if one["name"] == "share")
    assert share["state"] == "failed"
    assert "ZeroDivisionError" in share["why"]
    assert "ZeroDivisionError" in evertide("status", "--storage", tmp_path / "s").stdout


def test_s1_a_bound_transaction_that_does_not_commit_is_a_stall(tmp_path: Path) -> None:
    """Without the check of bound transactions, the status would be `running` for ever."""
    with open_small(tmp_path / "s") as p:
        runner = p._runner
        runner.bind(
            {
                name: Input(position, position)
                for name, position in read_positions(runner.journal, runner.definition, runner.sources).items()
            }
        )
        with StorageReader.open(tmp_path / "s", settings=Settings(stall_after_s=1e-6)) as reader:
            found = reader.status()
        assert (found.state, found.time, found.bound) == ("stalled", 0, 1)
        assert "transaction 1 is bound and not committed" in found.why
        with StorageReader.open(tmp_path / "s") as reader:
            assert reader.status().state == "running"
    assert "completes 1 bound transactions" in evertide("status", "--storage", tmp_path / "s").stdout


def test_status_of_a_storage_without_a_pipeline(tmp_path: Path) -> None:
    open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=Settings()).close()
    found = document(evertide("status", "--storage", tmp_path / "s", "--json"))
    assert (found["state"], found["time"]) == ("stopped", -1)
    assert found["why"] == "no pipeline ever ran on this storage"
    assert "no pipeline ever ran" in one_error(evertide("subscribe", "v", "--storage", tmp_path / "s"), 2)


def test_the_journal_lists_each_requested_transaction(tmp_path: Path) -> None:
    make_storage(tmp_path / "s", 4)
    found = lines(evertide("journal", "--storage", tmp_path / "s", "--json", "--from", "2", "--to", "3"))
    assert [(line["time"], line["rows"], line["committed"]) for line in found] == [(2, 1, True), (3, 1, True)]
    assert found[0]["moved"] == ["push"]
    assert "push" in evertide("journal", "--storage", tmp_path / "s").stdout


def test_the_checkpoints_newest_first(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    found = document(evertide("checkpoints", "--storage", tmp_path / "s", "--json"))
    assert [one["time"] for one in found] == [4, 1]
    assert all(one["bytes"] > 0 and one["files"] > 0 for one in found)
    assert len(evertide("checkpoints", "--storage", tmp_path / "s").stdout.splitlines()) == 3


def test_a_missing_storage_is_one_line_with_the_remedy_and_is_not_created(tmp_path: Path) -> None:
    line = one_error(evertide("status", "--storage", tmp_path / "s"), 2)
    assert line.startswith(f"evertide: {tmp_path / 's'}: no storage here")
    assert line.endswith("Nothing was changed; correct the input and retry.")
    assert not (tmp_path / "s").exists()
    (tmp_path / "s").mkdir()
    one_error(evertide("journal", "--storage", tmp_path / "s"), 2)
    assert list((tmp_path / "s").iterdir()) == []


def test_errors_as_json_have_code_message_remedy_and_facts(tmp_path: Path) -> None:
    found = json.loads(one_error(evertide("status", "--storage", tmp_path / "s", "--json"), 2))
    assert found["error_code"] == "invalid_input"
    assert found["where"] == str(tmp_path / "s")
    assert found["message"]
    assert found["remedy"]


@pytest.mark.parametrize(("content", "code", "kind"), [(None, 8, "record_damaged"), (b"9\n", 9, "unsupported_format")])
def test_the_exit_code_belongs_to_the_class_of_error(
    tmp_path: Path, content: bytes | None, code: int, kind: str
) -> None:
    path = make_storage(tmp_path / "s") / "FORMAT"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = json.loads(one_error(evertide("status", "--storage", tmp_path / "s", "--json"), code))
    assert found["error_code"] == kind


def _main(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["evertide", *args])
    monkeypatch.setattr("evertide.cli.main.signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


def test_an_invalid_command_line_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, "status") == 2
    assert "set --storage, or use a server" in capsys.readouterr().err
    assert _main(monkeypatch, "run") == 2
    assert capsys.readouterr().err.startswith("evertide: Missing ")
    assert _main(monkeypatch, "--url", "http://127.0.0.1:1", "fsck", "--storage", "s") == 2
    assert "--url can be used with status, query" in capsys.readouterr().err
    assert _main(monkeypatch, "nothing", "--json") == 2
    assert json.loads(capsys.readouterr().err)["error_code"] == "usage"


def test_version_and_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("evertide 0.")
    assert _main(monkeypatch, "run", "--help") == 0
    assert "Example: evertide run shop.sql" in capsys.readouterr().out


def test_errors_of_commands_reach_the_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert _main(monkeypatch, "status", "--storage", str(tmp_path / "s")) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_docs_page_of_commands_lists_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    names = {str(one.name) for one in command.app.registered_commands}
    assert names == set(re.findall(r"`evertide ([a-z]+)", page))


AWAY = Problem(ComponentState.RECONNECTING, "source_away", "no route to host", "Wait.", 5.0)
RISK = Problem(ComponentState.WARNING, "slot_at_risk", "12 bytes are left", "Hurry.", 6.0)


def test_status_has_the_reports_of_the_sources(tmp_path: Path) -> None:
    """From the storage alone: another process has no connection to the sources."""
    source = CandidSource("shop", ("orders",), [batch(ORDERS, [order(1)])])
    with with_sources(source), open_small(tmp_path / "s") as p:
        p.advance()
        source.lag, source.problems = Lag(bytes=3_000_000, seconds=75.5), (AWAY, RISK)
        p._leader_tasks._reporter.write_if_changed()
        found = document(evertide("status", "--storage", tmp_path / "s", "--json"))["sources"]
        told = next(one for one in found if one["name"] == "shop")
        assert (told["state"], told["tables"]) == ("reconnecting", ["orders"])
        assert told["lag"] == {"bytes": 3_000_000, "rows": None, "files": None, "seconds": 75.5}
        assert [one["error_code"] for one in told["problems"]] == ["source_away", "slot_at_risk"]
        assert SystemRuntime().wall_s() - told["told_at_s"] < 60
        shown = evertide("status", "--storage", tmp_path / "s").stdout
        for words in ("2.9 MiB, 1 min 15 s", "no route to host", "Wait.", "12 bytes are left", "Sources, as of 20"):
            assert words in shown
    found = document(evertide("status", "--storage", tmp_path / "s", "--json"))["sources"]
    assert [(one["name"], one["state"], one["tables"], one["lag"]) for one in found] == [
        ("push", "stopped", ["notes"], None),
        ("shop", "stopped", ["orders"], None),
    ]
    assert "as of" not in evertide("status", "--storage", tmp_path / "s").stdout


def test_the_live_display_shows_lag_and_problems(tmp_path: Path) -> None:
    source = CandidSource("shop", ("orders",))
    with with_sources(source), open_small(tmp_path / "s") as p:
        output = Output(is_json=False)
        assert [str(each) for each in LiveDisplay(p, output).panels()][1:] == []
        source.lag, source.problems = Lag(rows=1234, seconds=0.5), (RISK,)
        shown = "\n".join(map(str, LiveDisplay(p, output).panels()))
        assert "behind: shop 1,234 rows, 0.5 s" in shown
        assert "warning since" in shown
        assert "12 bytes are left" in shown
