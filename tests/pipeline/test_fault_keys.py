"""X14: rows that do not fit, in tables whose key has any type, compared with a model."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.flow.aggregates.groups import group_rows
from evertide.journal.records import Input
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.sources.contract import DELETE, OP, SAME, UPSERT, Fault, Rows
from evertide.sources.staged import FAULT
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import ScriptedSource, crash, open_pipeline, storage, with_sources

LATE = 5_000_000
"""A day after the year 9999, which Python lacks."""

KEYS: dict[str, tuple[Any, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 0, 127]),
    "big": (pa.int64(), [-(1 << 63), 0, (1 << 63) - 1]),
    "single": (pa.float32(), [0.1, float("inf"), float("nan"), 0.0]),
    "double": (pa.float64(), [1e300, float("-inf"), float("nan"), 0.0]),
    "truth": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", 'a "b"', "é", "b'x'"]),
    "bytes": (pa.binary(), [b"", b"abc", b"YWJj", b"\xff\x00"]),
    "day": (pa.date32(), [date(1, 1, 1), date(2024, 2, 29), LATE]),
    "at": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, tzinfo=UTC), LATE * 86_400_000_000]),
    "local": (pa.timestamp("us"), [datetime(2024, 1, 1, 0, 0, 0, 5), LATE * 86_400_000_000]),  # noqa: DTZ001
    "price": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01"), Decimal(0)]),
    "wide": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-1)]),
    "span": (pa.duration("us"), [timedelta(days=-3, microseconds=1), timedelta(0)]),
    "clock": (pa.time64("ns"), [time(12, 0), time(23, 59, 59, 999_999), 1_500]),
    "list": (pa.list_(pa.int64()), [[], [1, None], [1]]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.float64())]), [{"a": 1, "b": 0.0}, {"a": None, "b": 1.5}]),
}


def table_of(kind: Any) -> DeclaredTable:
    schema = pa.schema([pa.field("k", kind, nullable=False), pa.field("v", pa.int32(), nullable=False)])
    return DeclaredTable("m", schema, key=("k",))


def engine_of(table: DeclaredTable) -> SmallEngine:
    other = DeclaredTable("other", pa.schema([("v", pa.int32())]))
    rows = SmallView("n", pa.schema([("n", pa.int64())]), ("other",), lambda tables: [{"n": len(tables["other"])}])
    return SmallEngine((table, other), [rows])


CHANGES = ("good", "good", "misfit", "null", "nameless", "delete", "same")


class Model:
    """The expected table and dead letters: by key, a value, or None if the last change did not fit."""

    def __init__(self) -> None:
        self.keys: dict[int, int | None] = {}
        self.nameless = 0

    def change(self, kind: str, key: int, value: int) -> None:
        if kind == "nameless":
            self.nameless += 1
        elif kind == "delete":
            self.keys.pop(key, None)
        elif kind == "same":
            if self.keys.get(key) is None:
                self.keys[key] = None
        else:
            self.keys[key] = value if kind == "good" else None

    @property
    def values(self) -> dict[int, int]:
        return {key: value for key, value in self.keys.items() if value is not None}

    @property
    def letters(self) -> int:
        return self.nameless + sum(value is None for value in self.keys.values())


def batch_of(keys: Any, changes: list[tuple[str, int, int]]) -> Rows:
    """Return these changes as a source would offer them: the pipeline detects `null` itself, others are faults
    already."""
    rows: list[tuple[int, int | None, int | None, str | None]] = []
    faults: list[Fault] = []
    for line, (kind, key, value) in enumerate(changes, 1):
        if kind in ("misfit", "nameless"):
            name = pa.table({"k": keys.take(pa.array([key]))}) if kind == "misfit" else None
            faults.append(Fault("m", "here", line, "why", "raw", name, after=len(rows)))
        elif kind == "delete":
            rows.append((key, None, DELETE, None))
        elif kind == "same":
            rows.append((key, None, UPSERT, '["v"]'))
        else:
            rows.append((key, None if kind == "null" else value, UPSERT, None))
    at, values, ops, same = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {
        "k": keys.take(pa.array(at, pa.int64())),
        "v": pa.array(values, pa.int32()),
        OP: pa.array(ops, pa.int8()),
        SAME: pa.array(same, pa.string()),
    }
    return Rows("m", pa.table(columns), faults)


def read_content(p: Pipeline, keys: Any) -> dict[int, int]:
    """Return the content by the number of the key."""
    found = p.view("m").to_arrow()
    all_keys = pa.chunked_array([keys, *found["k"].chunks], keys.type)
    numbers = group_rows(pa.table({"k": all_keys}))[0].tolist()
    return dict(zip(numbers[len(keys) :], found["v"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("changes", "value", "reasons"),
    [
        (["null", "misfit", "good"], 3, []),
        (["good", "null", "null", "misfit", "delete", "good"], 6, []),
        (["null", "misfit"], None, ["why"]),
        (["misfit", "null"], None, ["column 'v' is NULL, and the table allows none"]),
        (["null", "misfit", "delete"], None, []),
    ],
)
def test_x25_a_row_with_a_null_does_not_change_the_order_of_later_faults(
    changes: list[str], value: int | None, reasons: list[str]
) -> None:
    """All changes are of one key, in one transaction: the last one counts. Seen to fail: a fault that moved behind the
    good row deleted it."""
    keys, source = pa.array([7], pa.int64()), ScriptedSource("s", ("m",))
    source.batches.append(batch_of(keys, [(kind, 0, at) for at, kind in enumerate(changes, 1)]))
    with with_sources(source), open_pipeline(storage(), engine_of(table_of(pa.int64()))) as p:
        p.commit()
        assert read_content(p, keys) == ({} if value is None else {0: value})
        assert p.view(ERRORS).to_arrow()["reason"].to_pylist() == reasons


@pytest.mark.parametrize("name", KEYS)
def test_x14_random_rows_that_do_not_fit_equal_a_model_for_every_type_of_key(name: str) -> None:
    compare_with_model(name, len(name), 24)


def compare_with_model(name: str, seed: int, steps: int) -> None:
    """Apply every kind of change, in one transaction or several, with checkpoints and crashes between them."""
    kind, values = KEYS[name]
    spellings = [pa.array(values, kind), pa.array([-0.0 if str(each) == "0.0" else each for each in values], kind)]
    keys, table, chance = spellings[0], table_of(kind), np.random.default_rng(seed)
    source, model = ScriptedSource("s", ("m",)), Model()
    kept = storage()
    with with_sources(source):
        p = open_pipeline(kept, engine_of(table))
        for step in range(steps):
            several = [
                (str(chance.choice(CHANGES)), int(chance.integers(len(values))), step) for _ in range(step % 4 + 1)
            ]
            source.batches.append(batch_of(spellings[chance.integers(2)], several))
            for change in several:
                model.change(*change)
            p.commit()
            assert read_content(p, keys) == model.values, several
            assert p.view(ERRORS).to_arrow().num_rows == model.letters, several
            if step % 12 == 7:
                p.checkpoint()
            if step % 12 in (5, 9):
                crash(p)
                p = open_pipeline(kept, engine_of(table))
        p.close()


FILES = {
    "day": ("2024-01-01", "2024-13-01"),
    "at": ("2024-01-01T00:00:00Z", "yesterday"),
    "local": ("2024-01-01 00:00:00", "2024-01-01T00:00:00Z"),
    "price": ("1.50", "1.505"),
    "wide": ("7", "1e39"),
    "clock": ("12:00:00", "25:00:00"),
    "span": ("1 00:00:00", "a day"),
    "bytes": ("YWJj", "?"),
    "double": ("NaN", "one"),
    "tiny": ("7", "128"),
}
"""A valid and an invalid text of a key."""


def test_x14_a_bad_row_of_a_file_deletes_the_old_row_for_every_type_of_key(tmp_path: Path) -> None:
    """A value that does not fit, a key that does not, and no key; then a good row removes the key's dead letter."""
    tables = []
    for name in FILES:
        options = {"path": str(tmp_path / name), "header": "true", "settle_ms": "0"}
        tables.append(replace(table_of(KEYS[name][0]), name=name, connector="csv", options=options))
        (tmp_path / name).mkdir()
    with open_pipeline(storage(), SmallEngine(tables, [])) as p:

        def put(file: str, line: str) -> None:
            for name, (key, bad) in FILES.items():
                (tmp_path / name / file).write_text("k,v\n" + line.format(key=key, bad=bad))
            while any(p.advance() is not None for _ in range(2)):
                pass

        put("a.csv", "{key},1\n")
        assert [p.view(name).to_arrow().num_rows for name in FILES] == [1] * len(FILES)
        put("b.csv", "{key},no number\n{bad},1\n,1\n")
        assert [p.view(name).to_arrow().num_rows for name in FILES] == [0] * len(FILES)
        found = p.view(ERRORS).to_arrow()
        assert found.num_rows == 3 * len(FILES)
        assert found["key"].null_count == 2 * len(FILES)
        put("c.csv", "{key},2\n")
        assert [p.view(name).to_arrow()["v"].to_pylist() for name in FILES] == [[2]] * len(FILES)
        assert p.view(ERRORS).to_arrow()["key"].null_count == p.view(ERRORS).to_arrow().num_rows == 2 * len(FILES)


@pytest.mark.parametrize(
    ("name", "told"), [("day", "2024-02-29"), ("price", "1.50"), ("bytes", "YWJj"), ("span", "-P2DT86399.999999S")]
)
def test_x14_a_storage_with_a_fault_staged_by_an_earlier_version_opens(name: str, told: str) -> None:
    """The earlier version wrote the key as JSON, bound the transaction, and failed on it at every start."""
    kind, values = KEYS[name]
    key = next(each for each in values if each not in (b"", date(1, 1, 1)))
    table = table_of(kind)
    kept = storage()
    with with_sources(ScriptedSource("s", ("m",))):
        p = open_pipeline(kept, engine_of(table))
        runner = p._runner
        columns = {"k": pa.array([key], kind), "v": pa.array([1], pa.int32()), OP: pa.array([UPSERT], pa.int8())}
        fault = f'{{"place":"m","line":1,"reason":"why","raw":"raw","key":{{"k":"{told}"}}}}'
        bad = pa.table({**columns, "v": pa.nulls(1, pa.int32()), FAULT: [fault]})
        for at, rows in enumerate((pa.table(columns), bad)):
            staged = runner.journal.stage("s", "m", rows, runner.writer)
            inputs = {name: Input(place, place) for name, place in runner.journal.positions().items()}
            runner.journal.bind(
                {**inputs, "s": Input(str(at), str(at + 1), (staged,))}, runner.definition.generation, runner.writer
            )
        crash(p)
        with open_pipeline(kept, engine_of(table)) as p:
            assert p.view("m").to_arrow().num_rows == 0
            assert p.view(ERRORS).to_arrow()["reason"].to_pylist() == ["why"]
