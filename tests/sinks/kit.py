"""What the tests of sinks share: a declaration, rows of all types, and random changes of a collection."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF, consolidate_delta, expand
from evertide.rows.slices import Slices, choose_by_columns
from evertide.runtime import Runtime
from evertide.sinks.contract import Changes, Prepared, Sink, SinkDeclaration
from evertide.sinks.registry import prepare_sinks
from tests.kit.runtime import ManualRuntime

Row = dict[str, Any]
T = TypeVar("T")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("ratio", pa.float64()),
        pa.field("raw", pa.binary()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("small", pa.int8()),
        pa.field("flag", pa.bool_()),
        pa.field("items", pa.list_(pa.int64())),
        pa.field("tags", pa.map_(pa.string(), pa.int64())),
        pa.field("point", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
TEXTS = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string())])
_FLOATS = [1.5, float("nan"), 0.0, -0.0, float("inf"), None]


def row(number: int | None, name: str | None = "a", ratio: float | None = 1.5) -> Row:
    if number is None:
        return dict.fromkeys(SCHEMA.names)
    return {
        "id": number,
        "name": name,
        "ratio": ratio,
        "raw": b"\x00\xff",
        "price": Decimal("12.30"),
        "at": dt.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=dt.UTC),
        "local": dt.datetime(2024, 2, 29, 12, 30),  # noqa: DTZ001 - a time without zone is meant
        "day": dt.date(1969, 12, 31),
        "small": -3,
        "flag": number % 2 == 0,
        "items": [number, None],
        "tags": [("k", number)],
        "point": {"x": None, "y": name},
    }


def declare(
    path: Path,
    connector: str,
    *,
    schema: pa.Schema = SCHEMA,
    key: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
) -> SinkDeclaration:
    given = {"path": "target"} if options is None else dict(options)
    return SinkDeclaration(
        "lake", "orders", schema, key, connector, given, "shop.sql, line 3", path, runtime or ManualRuntime()
    )


def prepare(declaration: SinkDeclaration) -> Prepared:
    return accept_tables(prepare_sinks([declaration])[declaration.name])


def accept_tables(ready: Prepared) -> Prepared:
    """The same, for tests that write one table per transaction."""
    return replace(ready, open=lambda token: _TakingTables(ready.open(token)))


class _TakingTables:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, time: int, changes: pa.Table | Changes) -> None:
        self._sink.write(time, changes if isinstance(changes, Changes) else Changes.of(changes))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def split_into_pieces(table: pa.Table, count: int, key: Sequence[str] = ()) -> Changes:
    """A table as the pieces in which a sink receives a large transaction."""
    with Slices(table.schema, count, choose_by_columns(key) if key else None) as slices:
        slices.add(table)
        pieces = [consolidate_delta(slices.read(index)) for index in range(count)]
    return Changes(lambda: pieces, is_addition=bool(pc.all(pc.greater(table[DIFF], 0)).as_py()))


def changes(*rows: tuple[Row, int], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Changes as sinks receive them."""
    told = pa.schema([*schema, pa.field(DIFF, pa.int64(), nullable=False)])
    return consolidate_delta(pa.Table.from_pylist([{**one, DIFF: diff} for one, diff in rows], told))


def text_changes(*rows: tuple[int, bytes, int]) -> pa.Table:
    """Id, bytes of the text, and diff."""
    numbers, values, diffs = zip(*rows, strict=True)
    texts = pa.array(values, pa.binary()).view(pa.string())
    told = pa.schema([*TEXTS, pa.field(DIFF, pa.int64(), nullable=False)])
    return consolidate_delta(pa.Table.from_arrays([pa.array(numbers), texts, pa.array(diffs, pa.int64())], schema=told))


def next_changes(content: pa.Table, random: np.random.Generator, *, is_keyed: bool) -> pa.Table:
    """Valid changes of a content: rows added, removed, updated; duplicates and NULLs if there is no key."""
    present = [(each, each.pop(DIFF)) for each in content.to_pylist()]
    given: list[tuple[Row, int]] = []
    taken = {one["id"] for one, _ in present}
    for one, count in present:
        if random.random() < 0.4:
            given.append((one, -1 if is_keyed else -int(random.integers(1, count + 1))))
            if random.random() < 0.5:
                update = row(one["id"], _one(random, ["b", "c", None]), _one(random, _FLOATS))
                given.append((update, 1))
    for _ in range(random.integers(0, 4)):
        number = int(random.integers(1, 10))
        if is_keyed and number in taken:
            continue
        taken.add(number)
        new = row(number if is_keyed or random.random() < 0.8 else None, ratio=_one(random, _FLOATS))
        given.append((new, 1 if is_keyed else int(random.integers(1, 3))))
    return changes(*given)


def _one(random: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(random.integers(len(choices)))]


def has_content(found: pa.Table, content: pa.Table) -> bool:
    """Whether a target has the content of a collection: as a multiset, bit by bit."""
    rows = found.select(content.schema.names[:-1]).cast(pa.schema([*content.schema][:-1]))
    counted = rows.append_column(content.schema.field(DIFF), pa.array(np.ones(rows.num_rows, np.int64)))
    gone = content.set_column(content.num_columns - 1, content.schema.field(DIFF), pa.array(-content[DIFF].to_numpy()))
    return (
        bool(consolidate_delta(pa.concat_tables([counted, gone])).num_rows == 0)
        and expand(content).num_rows == rows.num_rows
    )
