"""What sources say, as deltas of the tables: the last change of a key wins, against what the table holds.

Kept is, per table with a key, an arrangement of its rows by that key; and of the dead letters one by table and key.
Both are functions of the shards: they are saved in checkpoints, and can be built again.

1. Of all changes of a key in a transaction, in the order in which they came, the last counts (U5). What the table held
   under the key goes, what the last change says comes; a delete of a key that is not there changes nothing.
2. A table without a key takes rows as they come. A delete takes one row that is equal in all columns, if there is one.
3. A row that does not fit goes to the dead letters, with its place and the reason. If its key could be read, the key
   has no row from then on, as the old one is known to be wrong; the next good change, or a delete, takes the dead
   letter back (U6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.flow.arrangement import Arrangement
from evertide.flow.groups import group_rows
from evertide.flow.manifest import Manifest
from evertide.journal.records import Content
from evertide.pipeline.engine import DeclaredTable, StateStore
from evertide.pipeline.names import ERRORS, path_name
from evertide.shard.changes import DIFF, net
from evertide.shard.columns import Longs
from evertide.shard.digest import digest, to_hex
from evertide.sources.contract import DELETE, OP, UPSERT, Fault, Rows

__all__ = ["ERRORS", "ERRORS_SCHEMA", "TableDeltas", "Tables", "path_name"]

ERRORS_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.string(), nullable=False),
    ]
)
_ERRORS_KEY = ("table", "key")
_DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)
_OP_FIELD = pa.field(OP, pa.int8(), nullable=False)
_FAULT = 2
"""Beside `UPSERT` and `DELETE`: what came for the key could not be read."""


@dataclass(frozen=True, slots=True)
class TableDeltas:
    tables: Mapping[str, pa.Table]
    """Of the tables that change: columns, then `__diff`, each row once."""
    errors: pa.Table
    sources: Mapping[str, Content]
    """Per source, how many rows it gave, and their digest."""


class Tables:
    def __init__(
        self, tables: Mapping[str, DeclaredTable], store: StateStore, saved: Mapping[str, Manifest] | None = None
    ) -> None:
        """`saved` is what other tables of the same declaration saved; without it they are empty."""
        self._tables: dict[str, DeclaredTable] = {}
        self._store = store
        self._saved = saved
        self._by_key: dict[str, Arrangement] = {}
        for table in tables.values():
            self.add(table, None)
        self._errors = self._arrange(f"{ERRORS}.keyed", ERRORS_SCHEMA, _ERRORS_KEY)

    def _arrange(self, name: str, schema: pa.Schema, key: tuple[str, ...]) -> Arrangement:
        store = self._store
        parts: dict[str, Any] = {"blob": store.blob, "cache": store.cache, "new_name": store.new_name}
        saved = None if self._saved is None else self._saved.get(name)
        if saved is None:
            return Arrangement(name, schema, key, **parts)
        return Arrangement.restore(saved, **parts)

    def add(self, table: DeclaredTable, content: pa.Table | None) -> None:
        """A table that is new, or has further columns, with what it holds."""
        self._tables[table.name] = table
        if table.key:
            made = self._arrange(f"{path_name(table.name)}.keyed{len(table.schema)}", table.schema, table.key)
            if content is not None:
                made.apply(content)
            self._by_key[table.name] = made

    def kept(self) -> Iterator[Arrangement]:
        yield from self._by_key.values()
        yield self._errors

    def deltas(self, batches: Iterable[tuple[str, Rows]], content: Callable[[str], pa.Table]) -> TableDeltas:
        """Of what sources gave, by their names. `content` has the rows of a table, with their counts."""
        by_table: dict[str, list[tuple[str, Rows]]] = {}
        given: dict[str, tuple[int, int]] = {}
        for source, batch in batches:
            by_table.setdefault(batch.table, []).append((source, batch))
            rows, total = given.get(source, (0, 0))
            given[source] = (rows + batch.rows.num_rows + len(batch.faults), total + _digest(batch))
        found, errors = {}, []
        for name, several in by_table.items():
            gathered = _gathered(self._table(name), several)
            delta = self._delta(gathered, content)
            if delta.num_rows:
                found[name] = delta
            errors.append(self._errors_delta(gathered))
        empty = pa.schema([*ERRORS_SCHEMA, _DIFF_FIELD]).empty_table()
        contents = {source: Content(rows, to_hex(total % (1 << 128))) for source, (rows, total) in given.items()}
        return TableDeltas(found, net(pa.concat_tables([empty, *errors]), ERRORS), contents)

    def has(self, name: str) -> bool:
        return name in self._tables

    def _table(self, name: str) -> DeclaredTable:
        if name not in self._tables:
            why = (
                "rows of it are bound, and the script has no such table; open the pipeline with the script that had it"
            )
            raise InvalidInput(where=f"table {name!r}", why=why)
        return self._tables[name]

    def settle(self, deltas: Mapping[str, pa.Table], errors: pa.Table | None) -> None:
        for name, delta in deltas.items():
            if name in self._by_key and delta.num_rows:
                self._by_key[name].apply(delta)
        if errors is not None and errors.num_rows:
            self._errors.apply(errors)

    def save(self) -> dict[str, Manifest]:
        return {kept.name: kept.save() for kept in self.kept()}

    def maintain(self) -> bool:
        done = [kept.maintain() for kept in self.kept()]
        return any(done)

    def _delta(self, gathered: _Gathered, content: Callable[[str], pa.Table]) -> pa.Table:
        table = gathered.table
        if not table.key:
            return _unkeyed_delta(gathered, content)
        last = gathered.last
        old = self._by_key[table.name].lookup(gathered.keys_once)
        rows = gathered.rows.take(pa.array(last[gathered.ops[last] == UPSERT]))
        new = pa.Table.from_arrays(rows.columns, schema=table.schema)
        return net(
            pa.concat_tables([_with_diffs(old, -_diffs(old)), _with_diffs(new, np.ones(new.num_rows, np.int64))]),
            table.name,
        )

    def _errors_delta(self, gathered: _Gathered) -> pa.Table:
        new = _with_diffs(_letters(gathered), np.ones(len(gathered.faults), np.int64))
        if not gathered.table.key or not self._errors.rows:
            return new
        texts = _key_texts(gathered.keys_once)
        names = [gathered.table.name] * len(texts)
        fields = [ERRORS_SCHEMA.field(column) for column in _ERRORS_KEY]
        old = self._errors.lookup(pa.Table.from_arrays([pa.array(names), pa.array(texts)], schema=pa.schema(fields)))
        return pa.concat_tables([_with_diffs(old, -_diffs(old)), new])


@dataclass(frozen=True, slots=True)
class _Gathered:
    """All that came for one table, in order. Of a fault whose key is known there is a row, too, with that key."""

    table: DeclaredTable
    rows: pa.Table
    ops: Longs
    faults: tuple[tuple[str, Fault], ...]

    @property
    def _groups(self) -> tuple[Longs, Longs]:
        return group_rows(self.rows.select(list(self.table.key)))

    @property
    def last(self) -> Longs:
        """The last row of each key, in order of the keys' first appearance."""
        numbers, first = self._groups
        found = np.empty(len(first), np.int64)
        found[numbers] = np.arange(len(numbers))  # of several assignments to one place the last stays
        return found

    @property
    def keys_once(self) -> pa.Table:
        table = self.table
        _, first = self._groups
        schema = pa.schema([table.schema.field(column) for column in table.key])
        return pa.Table.from_arrays(self.rows.select(list(table.key)).take(pa.array(first)).columns, schema=schema)


def _gathered(table: DeclaredTable, batches: Sequence[tuple[str, Rows]]) -> _Gathered:
    pieces: list[pa.Table] = []
    faults: list[tuple[str, Fault]] = []
    schema = pa.schema([*(pa.field(field.name, field.type) for field in table.schema), _OP_FIELD])
    for source, batch in batches:
        rows, bad = _checked(table, _aligned(batch.rows, schema), source)
        known = sorted([*batch.faults, *bad], key=lambda fault: fault.after)
        faults += [(source, fault) for fault in known]
        keyed = [fault for fault in known if fault.key is not None] if table.key else []
        pieces.append(_interleaved(table, rows, keyed))
    rows = pa.concat_tables(pieces)
    ops = rows.column(OP).to_numpy().astype(np.int64)
    return _Gathered(table, rows.drop_columns([OP]), ops, tuple(faults))


def _aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows that were staged before the table got further columns have none of those."""
    if rows.schema.names == schema.names:
        return pa.Table.from_arrays(rows.columns, schema=schema)
    have = set(rows.schema.names)
    columns = [
        rows.column(field.name) if field.name in have else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _checked(table: DeclaredTable, rows: pa.Table, source: str) -> tuple[pa.Table, list[Fault]]:
    """The rows, those with a NULL where the table allows none as faults: their place stays taken, by nothing."""
    ops = rows.column(OP).to_numpy()
    bad = np.zeros(rows.num_rows, np.bool_)
    why = np.full(rows.num_rows, -1)
    for at, field in enumerate(table.schema):
        column = rows.column(at)
        if field.nullable or not column.null_count:
            continue
        missing = column.is_null().to_numpy()
        if field.name not in table.key:
            missing = missing & (ops == UPSERT)
        why[missing & ~bad] = at
        bad |= missing
    if not bad.any():
        return rows, []
    faults = [
        _null_fault(table, rows, int(at), table.schema.field(int(why[at])).name, source) for at in np.flatnonzero(bad)
    ]
    kept = np.cumsum(~bad)
    faults = [replace(fault, after=int(kept[fault.after])) for fault in faults]
    return rows.filter(pa.array(~bad)), faults


def _null_fault(table: DeclaredTable, rows: pa.Table, at: int, column: str, source: str) -> Fault:
    row = rows.slice(at, 1).drop_columns([OP]).to_pylist()[0]
    key = {name: row[name] for name in table.key}
    return Fault(
        table=table.name,
        place=source,
        line=at + 1,
        reason=f"column {column!r} is NULL, and the table allows none",
        raw=_text(row),
        key=key if key and None not in key.values() else None,
        after=at,
    )


def _interleaved(table: DeclaredTable, rows: pa.Table, faults: Sequence[Fault]) -> pa.Table:
    """Rows, and for each fault one that has only its key, in their order."""
    if not faults:
        return rows
    keys = [{**{name: fault.key[name] for name in table.key}, OP: _FAULT} for fault in faults if fault.key is not None]
    marks = pa.Table.from_pylist(keys, rows.schema)
    places = np.concatenate([np.arange(rows.num_rows) * 2 + 1, [fault.after * 2 for fault in faults]])
    return pa.concat_tables([rows, marks]).take(pa.array(np.argsort(places, kind="stable")))


def _unkeyed_delta(gathered: _Gathered, content: Callable[[str], pa.Table]) -> pa.Table:
    table, ops = gathered.table, gathered.ops
    rows = pa.Table.from_arrays(gathered.rows.columns, schema=table.schema)
    delta = net(_with_diffs(rows, np.where(ops == UPSERT, 1, -1)), table.name)
    if not (ops == DELETE).any() or not (_diffs(delta) < 0).any():
        return delta
    if not table.is_kept:
        why = "it has no key and is not kept, so that nobody knows which rows it has to delete"
        raise InvalidInput(where=f"table {table.name!r}", why=why)
    taken = delta.filter(pc.less(delta.column(DIFF), 0))
    return net(pa.concat_tables([delta, _excess(taken, content(table.name), table.name)]), table.name)


def _excess(taken: pa.Table, before: pa.Table, where: str) -> pa.Table:
    """How far the rows that are taken are more than there are: as additions, which make up for it."""
    left = net(pa.concat_tables([taken, before]), where)
    below = left.filter(pc.less(left.column(DIFF), 0))
    return _with_diffs(below, -_diffs(below))


def _letters(gathered: _Gathered) -> pa.Table:
    keys = _fault_keys(gathered)
    rows = [
        {
            "table": gathered.table.name,
            "key": key,
            "source": source,
            "place": fault.place,
            "line": fault.line,
            "reason": fault.reason,
            "raw": fault.raw,
        }
        for (source, fault), key in zip(gathered.faults, keys, strict=True)
    ]
    return pa.Table.from_pylist(rows, ERRORS_SCHEMA)


def _fault_keys(gathered: _Gathered) -> list[str | None]:
    """As the table's own types write them, so that they are found again by a good row."""
    table = gathered.table
    schema = pa.schema([table.schema.field(column) for column in table.key])
    texts: list[str | None] = []
    for _, fault in gathered.faults:
        key = fault.key if table.key else None
        texts.append(None if key is None else _key_texts(pa.Table.from_pylist([dict(key)], schema))[0])
    return texts


def _key_texts(keys: pa.Table) -> list[str]:
    return [_text(row) for row in keys.to_pylist()]


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=str, ensure_ascii=False)


def _digest(batch: Rows) -> int:
    ones = np.ones(batch.rows.num_rows, np.int64)
    if not batch.faults:
        return digest(batch.rows, ones)
    raw = pa.table({"raw": [fault.raw for fault in batch.faults], "line": [fault.line for fault in batch.faults]})
    return digest(batch.rows, ones) + digest(raw, np.ones(raw.num_rows, np.int64))


def _with_diffs(rows: pa.Table, diffs: Longs) -> pa.Table:
    plain = rows.drop_columns([DIFF]) if DIFF in rows.schema.names else rows
    return plain.append_column(_DIFF_FIELD, pa.array(diffs))


def _diffs(rows: pa.Table) -> Longs:
    found: Longs = rows.column(DIFF).to_numpy()
    return found
