"""Changes: rows with a time and a diff, and the multiset they add up to.

A table of changes has the shard's columns in order, then `__time` (int64, not NULL, >= 0) and `__diff` (int64, not
NULL, not 0 once checked). All functions are pure and return new tables.

Equality of rows is bit-exact, as in `evertide.rows.digest`: NaN equals NaN, NULL equals NULL, -0.0 and 0.0 differ.

A consolidated table has each (row, time) once, with a diff that is not 0, in an order that depends on its content only:
by the sortable columns, in order, NULL first, then time, then the row's hash. So equal multisets are equal tables,
whatever the order and chunks of the input, and rows that are adjacent compress and prune well.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput, StateInconsistent
from evertide.rows.columns import Bools, Longs, Words, remove_encoding, sort_distinct, to_array
from evertide.rows.conform import are_alike, conform, explain_refusal, find_first_null, forbids_null
from evertide.rows.digest import RowHashes, carry_hashes, compare_rows, hash_rows, keep_hashes
from evertide.rows.python_rows import to_python_rows

TIME = "__time"
DIFF = "__diff"

_TIME_FIELD = pa.field(TIME, pa.int64(), nullable=False)
DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)

_TABLE_ROWS = 65_536
_TABLE_BYTES = 8 * 1024 * 1024

_TIME_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)

_SORTABLE = frozenset(
    getattr(pa.lib, f"Type_{name}")
    for name in (
        *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FLOAT", "DOUBLE"),
        *("DATE32", "DATE64", "TIME32", "TIME64", "TIMESTAMP", "DURATION", "DECIMAL128", "DECIMAL256"),
        *("STRING", "LARGE_STRING", "BINARY", "LARGE_BINARY", "FIXED_SIZE_BINARY"),
    )
)


@lru_cache(maxsize=1024)
def make_changes_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a shard, then time and diff. Raise `InvalidInput` for columns that a shard cannot store."""
    names = schema.names
    for field in schema:
        if field.name in (TIME, DIFF):
            raise InvalidInput(where=f"column {field.name!r}", why="the name is reserved; rename the column")
        if names.count(field.name) > 1:
            raise InvalidInput(where=f"column {field.name!r}", why="the name occurs twice; rename one of the columns")
        if why := explain_refusal(field.type):
            raise InvalidInput(where=f"column {field.name!r}", why=why)
    return pa.schema([*schema, _TIME_FIELD, DIFF_FIELD])


def make_empty_changes(schema: pa.Schema) -> pa.Table:
    return make_changes_schema(schema).empty_table()


def check_changes(table: pa.Table, schema: pa.Schema, lower: int, upper: int, where: str) -> pa.Table:
    """Return the changes exactly as the shard `where` declares them, without those of diff 0; or raise `InvalidInput`.

    Times must be in [lower, upper), and the columns those of `schema` in order, of like types, with no NULL where the
    schema allows none. Messages name the first invalid row, counted from 0.
    """
    wanted = make_changes_schema(schema)
    _check_names(table, wanted, where)
    given = table.columns
    arrays = [check_column(column, wanted.field(i), where) for i, column in enumerate(given)]
    _check_times(_to_longs(arrays[-2]), lower, upper, where)
    checked = pa.Table.from_arrays(arrays, schema=wanted)
    kept = _to_longs(arrays[-1]) != 0
    if not kept.all():
        return checked.take(pa.array(np.flatnonzero(kept)))
    is_same = all(before is after for before, after in zip(given, arrays, strict=True))
    return carry_hashes(table, checked) if is_same else checked


def advance_times(table: pa.Table, since: int) -> pa.Table:
    """Move times below `since` up to `since`: no reader can tell them apart."""
    times = _to_longs(table.column(TIME))
    if len(times) == 0 or times.min() >= since:
        return table
    return table.set_column(table.num_columns - 2, _TIME_FIELD, pa.array(np.maximum(times, since)))


def consolidate(table: pa.Table, where: str = "changes") -> pa.Table:
    """Return each (row, time) once, with the sum of its diffs if that is not 0, in the order of the header."""
    columns = table.drop_columns([TIME, DIFF])
    times, diffs = _to_longs(table.column(TIME)), _to_longs(table.column(DIFF))
    rows, diffs = sum_diffs(columns, times, diffs, hash_rows(columns), where)
    rows_once = table.drop_columns([DIFF]).take(pa.array(rows))
    return rows_once.append_column(DIFF_FIELD, pa.array(diffs))


def compute_content(table: pa.Table, as_of: int, where: str = "changes") -> pa.Table:
    """The multiset at a time: the sum of the changes up to it, consolidated. Columns, then `__diff`."""
    times = _to_longs(table.column(TIME))
    if len(times) and times.max() > as_of:
        table = table.take(pa.array(np.flatnonzero(times <= as_of)))
    return consolidate_delta(table.drop_columns([TIME]), where)


def consolidate_delta(
    table: pa.Table, where: str = "changes", *, is_sorted: bool = True, hashes: RowHashes | None = None
) -> pa.Table:
    """Add up changes without times (columns, then `__diff`): each row once, with the sum of its diffs if not 0.

    The content decides the order, unless `is_sorted` is false: sorting costs more than adding up. `hashes` are those of
    the rows, if they are known; those of the result are kept with it.
    """
    columns = table.drop_columns([DIFF])
    hashes = hash_rows(columns) if hashes is None else hashes
    rows, diffs = sum_diffs(columns, None, _to_longs(table.column(DIFF)), hashes, where, is_sorted=is_sorted)
    found = columns.take(pa.array(rows)).append_column(DIFF_FIELD, pa.array(diffs))
    keep_hashes(found, hashes.take(rows))
    return found


def find_negative_sums(table: pa.Table) -> pa.Table:
    """Of changes without times, in order: each row whose running sum of diffs falls below 0, with the lowest sum."""
    columns, diffs = table.drop_columns([DIFF]), _to_longs(table.column(DIFF))
    if len(diffs) == 0:
        return table
    order, starts = _order_groups(columns)
    sums = np.cumsum(diffs[order])
    before = np.repeat((sums - diffs[order])[starts], np.diff(np.append(starts, len(order))))
    found = np.minimum.reduceat(sums - before, starts)
    return columns.take(pa.array(order[starts][found < 0])).append_column(DIFF_FIELD, pa.array(found[found < 0]))


def match_removed(removed: pa.Table, rows: pa.Table) -> tuple[Longs, pa.Table]:
    """Find rows to remove: the positions of `rows` that equal one of `removed`, and what remains of `removed`.

    `removed` is consolidated, and its diffs are negative: a row with -n matches up to n of `rows`, the first ones.
    """
    count = removed.num_rows
    columns = pa.concat_tables([removed.drop_columns([DIFF]), rows])
    if columns.num_rows == 0:
        return np.empty(0, np.int64), removed
    wanted = np.zeros(columns.num_rows, np.int64)
    wanted[:count] = -_to_longs(removed.column(DIFF))
    order, starts = _order_groups(columns)
    sizes = np.diff(np.append(starts, len(order)))
    rank = np.arange(len(order)) - np.repeat(starts, sizes)  # a removed row is the first of its group
    found = (rank > 0) & (rank <= np.repeat(wanted[order[starts]], sizes))
    wanted[order[starts]] -= np.add.reduceat(found, starts, dtype=np.int64)
    rest = np.flatnonzero(wanted[:count])
    remaining = removed.drop_columns([DIFF]).take(pa.array(rest)).append_column(DIFF_FIELD, pa.array(-wanted[rest]))
    return np.sort(order[found]) - count, remaining


def _order_groups(columns: pa.Table) -> tuple[Longs, Longs]:
    """An order in which equal rows are neighbours, in input order, and where each group starts."""
    order, again = _verify_groups(columns, *_group_rows(hash_rows(columns).high, None))
    is_first = np.concatenate(([True], ~again))
    return order[np.lexsort((order, np.cumsum(is_first)))], np.flatnonzero(is_first)


def expand(table: pa.Table, where: str = "collection") -> pa.Table:
    """Repeat each row of a multiset, which `compute_content` returns, as often as its count."""
    columns, counts = _split_counts(table, where)
    return _repeat(columns, counts)


def expand_in_tables(table: pa.Table, where: str = "collection") -> Iterator[pa.Table]:
    """Like `expand`, in tables of bounded size: one small row may occur a billion times, more than fits in memory."""
    columns, counts = _split_counts(table, where)
    yield from _iterate_tables(columns, counts)


def _iterate_tables(columns: pa.Table, counts: Longs) -> Iterator[pa.Table]:
    """Halve the rows until a table is small enough, or has one row."""
    most = int(counts.max(initial=0))
    if most <= 1 or (columns.nbytes <= _TABLE_BYTES // most and counts.sum(dtype=np.float64) <= _TABLE_ROWS):
        yield _repeat(columns, counts)
    elif len(counts) == 1:
        at_once = min(_TABLE_ROWS, max(1, _TABLE_BYTES // max(1, columns.nbytes)))
        for done in range(0, most, at_once):
            yield _repeat(columns, np.array([min(at_once, most - done)]))
    else:
        half = len(counts) // 2
        yield from _iterate_tables(columns.slice(0, half), counts[:half])
        yield from _iterate_tables(columns.slice(half), counts[half:])


def _split_counts(table: pa.Table, where: str) -> tuple[pa.Table, Longs]:
    """The rows, and the count of each. No row of a collection has a negative count."""
    counts = _to_longs(table.column(DIFF))
    columns = table.drop_columns([name for name in (TIME, DIFF) if name in table.schema.names])
    negative = np.flatnonzero(counts < 0)
    if len(negative):
        at = int(negative[0])
        [row] = to_python_rows(columns.slice(at, 1))
        raise StateInconsistent(
            where=where,
            why=f"row {row!r} has the count {int(counts[at])}, but no row of a collection has a negative count",
        )
    return columns, counts


def _repeat(columns: pa.Table, counts: Longs) -> pa.Table:
    if (counts == 1).all():
        return columns
    return columns.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _to_longs(column: Any) -> Longs:
    return np.asarray(to_array(column))


def _check_names(table: pa.Table, wanted: pa.Schema, where: str) -> None:
    found = table.schema.names
    if found != wanted.names:
        pairs = enumerate(zip(wanted.names, found, strict=False))
        at = next((i for i, (left, right) in pairs if left != right), min(len(found), len(wanted.names)))
        expected = repr(wanted.names[at]) if at < len(wanted.names) else "no further column"
        given = repr(found[at]) if at < len(found) else "no further column"
        raise InvalidInput(where=f"{where}, column {at}", why=f"found {given}, but the shard has {expected} there")


def check_column(column: Any, field: Any, where: str) -> Any:
    """Return the values exactly as `field` declares them; or raise `InvalidInput` with the first invalid row."""
    as_declared = column.type.equals(field.type, check_metadata=True)
    if as_declared and not forbids_null(field.type) and (field.nullable or column.null_count == 0):
        return column  # nothing to convert or check: the case of every append of the engine
    place = f"{where}, column {field.name!r}"
    if not are_alike(column.type, field.type):
        raise InvalidInput(where=place, why=f"the type is {column.type}, but {field.type} is declared")
    checked, before = [], 0
    for chunk in column.chunks:
        array = conform(chunk, field.type)
        row = find_first_null(array, field)
        if row is not None:
            [found] = to_python_rows(pa.table({"value": array.slice(row, 1)}))
            why = f"row {before + row} holds {found['value']!r}, but {field} allows no NULL there"
            raise InvalidInput(where=place, why=why)
        checked.append(array)
        before += len(chunk)
    return pa.chunked_array(checked, field.type)


def _check_times(times: Longs, lower: int, upper: int, where: str) -> None:
    if len(times) == 0 or (times.min() >= lower and times.max() < upper):
        return
    row = int(np.flatnonzero((times < lower) | (times >= upper))[0])
    why = f"row {row} has the time {int(times[row])}, which is not in [{lower}, {upper})"
    raise InvalidInput(where=f"{where}, column {TIME!r}", why=why)


def sum_diffs(
    columns: pa.Table, times: Longs | None, diffs: Longs, hashes: RowHashes, where: str, *, is_sorted: bool = True
) -> tuple[Longs, Longs]:
    """For each distinct (row, time) whose diffs do not sum to 0: the position of one of its rows, and that sum.

    1. Sort the rows by hash and time, so that equal rows are adjacent, and compare them.
    2. Sum the diffs of each group of equal rows.
    3. If `is_sorted`, sort the remaining rows; otherwise their positions ascend. Sorting all rows by value before
       would cost more, because equal rows tie in every column.
    """
    if len(diffs) == 0:
        return np.empty(0, np.int64), diffs
    order, again = _verify_groups(columns, *_group_rows(hashes.high, times))
    if again.any():
        starts = np.flatnonzero(np.concatenate(([True], ~again)))
        totals = np.zeros(len(diffs), np.int64)
        totals[order[starts]] = _sum_groups(columns, diffs[order], order, starts, where)
    else:
        totals = diffs
    rows = np.flatnonzero(totals)
    if is_sorted:
        rows = _sort_rows(columns, times, hashes, rows)
    return rows, totals[rows]


def _group_rows(high: Words, times: Longs | None) -> tuple[Longs, Bools]:
    """An order in which equal rows of one time are adjacent, and which rows may equal the row before them.

    Half of the hash suffices, because `_verify_groups` compares the rows. The factor is odd, so equal rows share a key
    only at the same time.
    """
    key = high if times is None else high + times.view(np.uint64) * _TIME_SPREAD
    order = np.argsort(key)
    in_order = key[order]
    return order, np.equal(in_order[1:], in_order[:-1])


def _sort_rows(columns: pa.Table, times: Longs | None, hashes: RowHashes, rows: Longs) -> Longs:
    """Sort the rows by the sortable columns, NULL first, then time, then hash."""
    everything = len(rows) == columns.num_rows
    keys: list[Any] = []
    for column in columns.columns:
        array = remove_encoding(to_array(column))
        if array.type.id in _SORTABLE:
            array = array if everything else array.take(pa.array(rows))
            keys += [array.is_valid(), array] if array.null_count else [array]
    keys += [pa.array(key[rows]) for key in (times, *hashes) if key is not None]
    names = [str(i) for i in range(len(keys))]
    found = pc.sort_indices(pa.Table.from_arrays(keys, names=names), sort_keys=[(name, "ascending") for name in names])
    return np.take(rows, np.asarray(found))


def _verify_groups(columns: pa.Table, order: Longs, again: Bools) -> tuple[Longs, Bools]:
    """Find which rows equal the row before, among those with equal keys: a hash is never trusted.

    A run of equal keys with different rows is reordered, so that equal rows are adjacent.
    """
    pairs = np.flatnonzero(again)
    if len(pairs) == 0:
        return order, again
    equal = compare_rows(columns, order[pairs], order[pairs + 1])
    if equal.all():
        return order, again
    order, verified = order.copy(), again.copy()
    run_starts = np.flatnonzero(np.concatenate(([True], ~again)))
    ends = np.append(run_starts[1:], len(order))
    for run in sort_distinct(np.searchsorted(run_starts, pairs[~equal], "right") - 1):
        at, rest = run_starts[run], order[run_starts[run] : ends[run]].copy()
        while len(rest):
            same = compare_rows(columns, np.full(len(rest), rest[0]), rest)
            same[0] = True
            order[at : at + same.sum()] = rest[same]
            verified[at : at + same.sum() - 1] = True
            at, rest = at + same.sum(), rest[~same]
            if len(rest):
                verified[at - 1] = False
    return order, verified


def _sum_groups(columns: pa.Table, diffs: Longs, order: Longs, starts: Longs, where: str) -> Longs:
    """Sum the diffs per group, in halves of 32 bits, so that an overflow is an error and not a wrong count."""
    upper = np.add.reduceat(diffs >> 32, starts)
    lower = np.add.reduceat(diffs & 0xFFFF_FFFF, starts)
    upper += lower >> 32
    over = np.flatnonzero((upper < -(1 << 31)) | (upper >= 1 << 31))
    if len(over):
        [row] = to_python_rows(columns.slice(int(order[starts[over[0]]]), 1))
        total = (int(upper[over[0]]) << 32) + int(lower[over[0]] & 0xFFFF_FFFF)
        raise InvalidInput(where=where, why=f"the diffs of row {row!r} add up to {total}, which does not fit 64 bits")
    return (upper << 32) + (lower & 0xFFFF_FFFF)
