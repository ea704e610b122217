"""Prepares the input of one table in a transaction, in order, for the comparison with the table's rows.

1. A row with a NULL in a NOT NULL column is a fault, as is one with a text that is too long for its CHAR or VARCHAR.
   A fault with a known key becomes a row with that key, as it counts as a change of the key (U6). A CHAR is padded
   here, before rows are grouped by key, whether or not the source has done so.
2. Only the input after the last `TRUNCATE` counts.
3. A delete or `TRUNCATE` of a table that cannot apply it (`DeclaredTable.can_delete`) is a fault.
4. An upsert may leave columns unchanged. Their values come from the key's previous row, in the same transaction or in
   the table. If there is none, the upsert is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.aggregates.groups import group_rows
from evertide.pipeline.engine import DeclaredTable
from evertide.rows.char_types import fit_char_types, read_declared_type
from evertide.rows.columns import Longs, to_array
from evertide.rows.digest import RowHashes, concatenate_hashes, hash_rows, sum_hashes
from evertide.rows.python_rows import to_python_rows
from evertide.sources.contract import DELETE, OP, SAME, TRUNCATE, UPSERT, Fault, Rows
from evertide.sources.values.fit import extract_key

_OP_FIELD = pa.field(OP, pa.int8(), nullable=False)
_SAME_FIELD = pa.field(SAME, pa.string())
_FAULT = 3
"""An operation like `UPSERT`, `DELETE` and `TRUNCATE`: a row of this key does not fit the table."""
_NO_DELETES = "a table without a key that is not kept cannot apply deletes"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A fault, its source, and the number of its row; -1 if its key is unknown."""

    source: str
    fault: Fault
    row: int = -1


@dataclass(frozen=True)
class HashedBatch:
    """A batch whose rows are hashed once, for the digest of the input and for the delta of the table."""

    batch: Rows

    @cached_property
    def _hashes(self) -> tuple[pa.Schema, RowHashes]:
        """The columns before the last one, and the hashes of the rows with these columns only."""
        rows = self.batch.rows
        columns = rows.select(rows.schema.names[:-1])
        return columns.schema, hash_rows(columns)

    @property
    def digest(self) -> int:
        rows = self.batch.rows
        _, hashes = self._hashes
        whole = hashes.add_column(rows.schema.names[-1], rows.column(rows.num_columns - 1))
        return sum_hashes(whole, np.ones(rows.num_rows, np.int64))

    def hash_as(self, schema: pa.Schema) -> RowHashes | None:
        """The hashes of the rows with the columns of a table; None if the batch has others before its last one.

        Columns of other types are others: they are converted, and equal values of two types may have different hashes.
        """
        found, hashes = self._hashes
        return hashes if (found.names, found.types) == (schema.names, schema.types) else None


@dataclass(frozen=True)
class TableInput:
    table: DeclaredTable
    rows: pa.Table
    ops: Longs
    dead_letters: tuple[DeadLetter, ...]
    same: Mapping[int, str]
    """By row, the columns that an upsert leaves unchanged (`SAME`)."""
    sources: tuple[str, ...]
    is_truncated: bool = False
    hashes: RowHashes | None = None
    """Of the rows, if they are known."""

    @cached_property
    def _groups(self) -> tuple[Longs, Longs]:
        return group_rows(self.rows.select(list(self.table.key)))

    @cached_property
    def last(self) -> Longs:
        """The last row of each key, in order of the keys' first appearance."""
        numbers, first = self._groups
        found = np.empty(len(first), np.int64)
        found[numbers] = np.arange(len(numbers))  # of several assignments to one place, the last wins
        return found

    def select_upserts(self) -> tuple[pa.Table, RowHashes | None]:
        """The rows of keys whose last change is an upsert, and their hashes, if they are known."""
        chosen = self.last[self.ops[self.last] == UPSERT]
        rows = pa.Table.from_arrays(self.rows.take(pa.array(chosen)).columns, schema=self.table.schema)
        return rows, None if self.hashes is None else self.hashes.take(chosen)

    @cached_property
    def keys_once(self) -> pa.Table:
        table = self.table
        _, first = self._groups
        schema = pa.schema([table.schema.field(column) for column in table.key])
        return pa.Table.from_arrays(self.rows.select(list(table.key)).take(pa.array(first)).columns, schema=schema)

    @property
    def final_dead_letters(self) -> list[DeadLetter]:
        """The dead letters that no later change of the same key removes."""
        if not self.table.key:
            return list(self.dead_letters)
        last = set(self.last.tolist())
        return [dead_letter for dead_letter in self.dead_letters if dead_letter.row < 0 or dead_letter.row in last]


def gather_input(table: DeclaredTable, batches: Sequence[tuple[str, HashedBatch]]) -> TableInput:
    interleaved: list[pa.Table] = []
    hashes: list[RowHashes | None] = []
    dead_letters: list[DeadLetter] = []
    schema = pa.schema([*(pa.field(field.name, field.type) for field in table.schema), _OP_FIELD, _SAME_FIELD])
    for source, hashed in batches:
        batch = hashed.batch
        aligned = align_columns(batch.rows, schema)
        fitted, misfits = _fit_char_types(table, aligned)
        given = [_fit_fault_key(table, fault) for fault in batch.faults]
        rows, known = _check_values(table, aligned, fitted, misfits, given, source)
        if not table.can_delete:
            rows, known = _refuse_deletes(table, rows, known, source)
        keyed = [fault for fault in known if fault.key is not None] if table.key else []
        interleaved.append(_interleave(table, rows, keyed))
        is_same = interleaved[-1].num_rows == batch.rows.num_rows and not known and fitted is aligned
        hashes.append(hashed.hash_as(table.schema) if is_same else None)
        dead_letters += [DeadLetter(source, fault) for fault in known]
    rows = pa.concat_tables(interleaved)
    ops = rows.column(OP).to_numpy().astype(np.int64)
    table_input = TableInput(
        table,
        rows.drop_columns([OP, SAME]),
        ops,
        _place_dead_letters(dead_letters, ops) if table.key else tuple(dead_letters),
        _read_marks(rows.column(SAME)),
        tuple(dict.fromkeys(source for source, _ in batches)),
        hashes=None if None in hashes else concatenate_hashes([one for one in hashes if one is not None]),
    )
    return _cut_at_truncate(table_input)


def _place_dead_letters(dead_letters: Sequence[DeadLetter], ops: Longs) -> tuple[DeadLetter, ...]:
    """Assign the fault rows to the dead letters with a key, in order."""
    rows = iter(np.flatnonzero(ops == _FAULT).tolist())
    return tuple(
        dead_letter if dead_letter.fault.key is None else replace(dead_letter, row=next(rows))
        for dead_letter in dead_letters
    )


def _read_marks(same: Any) -> dict[int, str]:
    if same.null_count == len(same):
        return {}
    return {row: same[row].as_py() for row in np.flatnonzero(np.asarray(same.is_valid())).tolist()}


def _cut_at_truncate(table_input: TableInput) -> TableInput:
    cuts = np.flatnonzero(table_input.ops == TRUNCATE)
    if not len(cuts):
        return table_input
    first = int(cuts[-1]) + 1
    dead_letters = [
        dead_letter for dead_letter in table_input.dead_letters if dead_letter.row < 0 or dead_letter.row >= first
    ]
    return TableInput(
        table_input.table,
        table_input.rows.slice(first),
        table_input.ops[first:],
        tuple(
            dead_letter if dead_letter.row < 0 else replace(dead_letter, row=dead_letter.row - first)
            for dead_letter in dead_letters
        ),
        {row - first: mark for row, mark in table_input.same.items() if row >= first},
        table_input.sources,
        is_truncated=True,
    )


def align_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of `schema`; columns that they do not have are NULL."""
    have = set(rows.schema.names)
    columns = [
        rows.column(field.name) if field.name in have else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fit_char_types(table: DeclaredTable, rows: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """The rows with CHAR and VARCHAR of their lengths, the same if nothing changes; and by row, why it does not fit."""
    ops = rows.column(OP).to_numpy()
    misfits: dict[int, str] = {}
    for at, field in enumerate(table.schema):
        declared = read_declared_type(field)
        if declared is None:
            continue
        given = to_array(rows.column(at))
        fitted, found = fit_char_types(given, declared)
        is_key = field.name in table.key or not table.key
        for row, why in found.items():
            if ops[row] == UPSERT or (ops[row] == DELETE and is_key):
                misfits.setdefault(row, f"column {field.name!r}: {why}")
        if fitted is not given:
            rows = rows.set_column(at, rows.schema.field(at), fitted)
    return rows, misfits


def _fit_fault_key(table: DeclaredTable, fault: Fault) -> Fault:
    """No row has a key that does not fit, so such a key is as good as unknown."""
    key = fault.key
    for name in table.key if key is not None else ():
        declared = read_declared_type(table.schema.field(name))
        if declared is not None and key is not None:
            at = key.schema.get_field_index(name)
            fitted, misfits = fit_char_types(to_array(key.column(at)), declared)
            key = None if misfits else key.set_column(at, key.schema.field(at), fitted)
    return fault if key is fault.key else replace(fault, key=key)


def _check_values(  # noqa: PLR0917
    table: DeclaredTable,
    aligned: pa.Table,
    rows: pa.Table,
    misfits: Mapping[int, str],
    given: Sequence[Fault],
    source: str,
) -> tuple[pa.Table, list[Fault]]:
    """The rows that fit, and all faults in order: the given ones, misfits, and rows with a NULL in a NOT NULL column.

    `aligned` has the rows as the source gave them."""
    ops = rows.column(OP).to_numpy()
    marks = _read_marks(rows.column(SAME))
    bad = np.zeros(rows.num_rows, np.bool_)
    bad[[*misfits]] = True
    why = np.full(rows.num_rows, -1)
    for at, field in enumerate(table.schema):
        column = rows.column(at)
        if field.nullable or not column.null_count:
            continue
        missing = column.is_null().to_numpy() & (ops != TRUNCATE)
        if field.name not in table.key:
            missing = missing & (ops == UPSERT)
        for row, mark in marks.items():
            missing[row] = missing[row] and field.name not in _parse_mark(mark)[1]
        why[missing & ~bad] = at
        bad |= missing
    if not bad.any():
        return rows, sorted(given, key=lambda fault: fault.after)
    found = [(fault.after, 0, fault) for fault in given]  # a given fault comes before the row that it names
    names = table.schema.names
    for at in np.flatnonzero(bad).tolist():
        reason = misfits.get(at) or f"column {names[why[at]]!r} is NULL, and the table allows none"
        fault = replace(_make_fault(table, aligned, at, reason, source), key=extract_key(rows, table.key, at))
        found.append((at, 1, fault))
    found.sort(key=lambda one: one[:2])
    kept = np.concatenate([[0], np.cumsum(~bad)])  # the number of remaining rows before each
    return rows.filter(pa.array(~bad)), [replace(fault, after=int(kept[fault.after])) for _, _, fault in found]


def _refuse_deletes(
    table: DeclaredTable, rows: pa.Table, known: Sequence[Fault], source: str
) -> tuple[pa.Table, list[Fault]]:
    """Without deletes. None is applied, not even that of a row of the same transaction, which another portion may
    have."""
    is_refused = rows.column(OP).to_numpy() != UPSERT
    found = [_make_fault(table, rows, at, _NO_DELETES, source) for at in np.flatnonzero(is_refused).tolist()]
    return rows.filter(pa.array(~is_refused)), [*known, *found]


def _make_fault(table: DeclaredTable, rows: pa.Table, at: int, reason: str, source: str) -> Fault:
    row = rows.slice(at, 1).select(table.schema.names)
    return Fault(
        table=table.name,
        place=source,
        line=at + 1,
        reason=reason,
        raw=write_json_texts(row)[0],
        key=extract_key(row, table.key, 0),
        after=at,
    )


def _interleave(table: DeclaredTable, rows: pa.Table, faults: Sequence[Fault]) -> pa.Table:
    """The rows, and for each fault a row with only its key, in order."""
    if not faults:
        return rows
    keys = pa.concat_tables([fault.key.select(list(table.key)) for fault in faults if fault.key is not None])
    marks = align_columns(keys.append_column(_OP_FIELD, pa.array(np.full(len(faults), _FAULT, np.int8))), rows.schema)
    places = np.concatenate([np.arange(rows.num_rows) * 2 + 1, [fault.after * 2 for fault in faults]])
    return pa.concat_tables([rows, marks]).take(pa.array(np.argsort(places, kind="stable")))


def write_json_texts(rows: pa.Table) -> list[str]:
    """Each row as JSON. The text of a row does not depend on the others."""
    try:
        found: list[Mapping[str, Any]] = rows.to_pylist()
    except (OverflowError, ValueError):  # values that Python lacks: the year 10000, texts that are not UTF-8
        found = [row for at in range(rows.num_rows) for row in to_python_rows(rows.slice(at, 1))]
    return [json.dumps(row, default=str, ensure_ascii=False) for row in found]


# Columns that an upsert leaves unchanged


def _parse_mark(mark: str) -> tuple[bool, list[str]]:
    """Whether the key changed, and the unchanged columns."""
    found = json.loads(mark)
    return (True, found["moved"]) if isinstance(found, dict) else (False, found)


def fill_unchanged(table_input: TableInput, lookup: Callable[[pa.Table], pa.Table]) -> TableInput:
    """The input with all values filled in, for a table with a key. `lookup` returns the table's rows by key."""
    if not table_input.same:
        return table_input
    values = _Values(table_input, lookup)
    found, bad = values.find_values()
    rows, ops = table_input.rows, table_input.ops.copy()
    for at, field in enumerate(table_input.table.schema):
        here = {row: given[field.name] for row, given in found.items() if field.name in given}
        if here:
            both = [to_array(rows.column(at)), *(to_array(here[row]) for row in sorted(here))]
            places = np.arange(rows.num_rows)
            places[sorted(here)] = rows.num_rows + np.arange(len(here))
            filled = pa.concat_arrays(both).take(pa.array(places))  # works for nested types, too
            rows = rows.set_column(at, pa.field(field.name, field.type), filled)
    dead_letters = list(table_input.dead_letters)
    for row, column in bad.items():
        ops[row] = _FAULT
        why = (
            f"the upsert leaves column {column!r} unchanged, but the table has no earlier row with this key to take "
            "the value from"
        )
        dead_letters.append(
            DeadLetter(
                table_input.sources[0], _make_fault(table_input.table, rows, row, why, table_input.sources[0]), row
            )
        )
    return replace(table_input, rows=rows, ops=ops, dead_letters=tuple(dead_letters), same={}, hashes=None)


class _Values:
    """Finds unchanged values: walks through the changes in order, and tracks the current row of every key."""

    def __init__(self, table_input: TableInput, lookup: Callable[[pa.Table], pa.Table]) -> None:
        self._input = table_input
        self._before = lookup(
            table_input.keys_once if not table_input.is_truncated else table_input.keys_once.slice(0, 0)
        )
        columns = list(table_input.table.key)
        keys = table_input.rows.select(columns)
        both = pa.concat_tables([keys, align_columns(self._before, keys.schema)])
        numbers = group_rows(both)[0].tolist()
        self._keys: list[int] = numbers[: table_input.rows.num_rows]
        """The number of each row's key."""
        self._old = {key: row for row, key in enumerate(numbers[table_input.rows.num_rows :])}
        """By key, the row in the table."""
        self._now: dict[int, int | None] = {}
        """By changed key, its current row in the input; None if it has no row."""
        self._found: dict[int, dict[str, Any]] = {}

    def find_values(self) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """Values by row and column, as arrays of length 1; and rows without a value, each with the column."""
        bad: dict[int, str] = {}
        deleted: Callable[[str], Any] = self._raise_missing
        for row, (key, op) in enumerate(zip(self._keys, self._input.ops.tolist(), strict=True)):
            if op == UPSERT and row in self._input.same:
                is_moved, names = _parse_mark(self._input.same[row])
                value_of = deleted if is_moved else self._make_reader(key)
                try:
                    self._found[row] = {name: value_of(name) for name in names}
                except KeyError as error:
                    bad[row] = str(error.args[0])
            deleted = self._make_reader(key) if op == DELETE else self._raise_missing
            self._now[key] = row if op == UPSERT and row not in bad else None
        return self._found, bad

    def _make_reader(self, key: int) -> Callable[[str], Any]:
        """A function that returns the key's current value of a column."""
        at, is_changed, old = self._now.get(key), key in self._now, self._old.get(key)

        def value(name: str) -> Any:
            if at is not None:
                given = self._found.get(at, {})
                return given[name] if name in given else self._input.rows.column(name).slice(at, 1)
            if is_changed or old is None:
                raise KeyError(name)
            return self._before.column(name).slice(old, 1)

        return value

    @staticmethod
    def _raise_missing(name: str) -> Any:
        raise KeyError(name)
