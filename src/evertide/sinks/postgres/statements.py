"""Convert a transaction to rows to send, and to the one statement that applies them to the table.

1. The rows are a relation with the table's columns as `c0`, `c1`, and so on, and the columns `n` and `part`.
2. With a key, `n` is the operation on the key's row (`REMOVED`, `CHANGED`, `ADDED`). `part` has a bit for each key
   column that is NULL: for each such pattern, `=` and IS NULL find the row by an index, which IS NOT DISTINCT FROM does
   not.
3. Without a key, `n` is the number of copies to add, or to remove if negative. Rows are equal if their texts
   (`ROW(...)::text`) are equal, which distinguishes NULL, NaN and -0.0 in all types.
4. The statement deletes, updates, inserts, and stores the transaction number. It counts the affected rows: if the count
   is not the expected one, a constraint of the table of numbers refuses the statement.
5. If a later process has opened the sink, or the table already has the transaction, the statement changes no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF, expand_in_tables
from evertide.rows.columns import Longs
from evertide.rows.digest import hash_rows
from evertide.sinks.postgres.types import to_texts

REMOVED, CHANGED, ADDED = -1, 0, 1
CHANGES = "pg_temp.evertide_changes"
"""The temporary table for the rows of a large transaction."""
_SLICE_ROWS = 20_000
_MAY_WRITE = "token = %(token)s AND epoch = %(epoch)s AND time < %(time)s"
_QUERIES = ("wanted", "found")
"""Steps that change no rows."""


def quote(*names: str) -> str:
    """Quote identifiers for a statement with parameters."""
    return ".".join('"' + name.replace('"', '""').replace("%", "%%") + '"' for name in names)


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """The columns of the table, in the collection's order."""

    table: str
    numbers_table: str
    """The table of transaction numbers. Both names are quoted."""
    names: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[int, ...]
    """Places of the key's columns."""
    index: int | None = None
    """Without a key: the place of the first column of an index."""

    @property
    def listed(self) -> str:
        return ", ".join(quote(name) for name in self.names)

    @property
    def sent(self) -> str:
        return ", ".join(f"c{at}" for at in range(len(self.names)))


@dataclass(slots=True)
class Summary:
    """What the statement depends on, collected from the pieces of a transaction."""

    expected: int = 0
    """The number of rows that the statement must affect."""
    has_removals: bool = False
    parts: dict[int, set[int]] = field(default_factory=lambda: {REMOVED: set(), CHANGED: set()})
    """With a key: the values of `part` that occur, for `REMOVED` and `CHANGED`."""
    distinct: dict[int, int] = field(default_factory=dict)
    """Without a key: about how many values each column has in removed rows; only columns that are never NULL there."""

    def add(self, sent: RowsToSend, *, is_keyed: bool) -> None:
        self.expected += sent.expected
        ops = sent.rows["n"]
        if is_keyed:
            for op, found in self.parts.items():
                found.update(pc.unique(sent.rows.filter(pc.equal(ops, op))["part"]).to_pylist())
        removed = sent.rows.filter(pc.less(ops, 0))
        if removed.num_rows and not is_keyed:
            columns = [*self.distinct] if self.has_removals else range(removed.num_columns - 2)
            values = {at: removed[f"c{at}"] for at in columns}
            self.distinct = {
                at: pc.count_distinct(column).as_py() + self.distinct.get(at, 0)
                for at, column in values.items()
                if not column.null_count and not pa.types.is_nested(column.type)
            }
        self.has_removals = self.has_removals or removed.num_rows > 0


@dataclass(frozen=True, slots=True)
class RowsToSend:
    """Rows of a transaction, with `n` and `part` as last columns, and the number of rows that they affect."""

    rows: pa.Table
    expected: int

    def to_texts(self) -> Iterator[pa.Table]:
        """The values as texts of PostgreSQL, `_SLICE_ROWS` rows at a time."""
        return _texts(self.rows)

    def copies(self) -> Iterator[pa.Table]:
        """Added rows as texts, without `n` and `part`, each as often as it is added."""
        names = [*self.rows.schema.names[:-2], DIFF]
        for rows in expand_in_tables(self.rows.drop_columns(["part"]).rename_columns(names)):
            yield from _texts(rows)


def _texts(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _SLICE_ROWS):
        some = rows.slice(start, _SLICE_ROWS)
        yield pa.table({name: to_texts(some[name]) for name in some.schema.names})


def make_keyed_rows(changes: pa.Table, key: Sequence[str]) -> RowsToSend | None:
    """The operation on each key. None if a key has several rows."""
    diffs = changes[DIFF].to_numpy()
    hashes = hash_rows(changes.select(key))
    order = np.lexsort((diffs, hashes.low, hashes.high))
    high, low, ordered = hashes.high[order], hashes.low[order], diffs[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    pairs = again & (ordered == 1) & (np.roll(ordered, 1) == -1)
    if (np.abs(ordered) != 1).any() or (again != pairs).any():
        return None
    operations = diffs.copy()
    operations[order[pairs]] = CHANGED
    kept = np.sort(order[~np.roll(pairs, -1)])  # without the old rows of updates
    rows = changes.drop_columns([DIFF]).take(pa.array(kept))
    part = np.zeros(len(kept), np.int64)
    for bit, column in enumerate(key):
        part |= rows[column].is_null().to_numpy().astype(np.int64) << bit
    return _make_rows_to_send(rows, operations[kept], part, len(kept))


def make_counted_rows(changes: pa.Table) -> RowsToSend:
    """Rows of a collection without a key."""
    diffs = changes[DIFF].to_numpy()
    return _make_rows_to_send(
        changes.drop_columns([DIFF]), diffs, np.zeros(len(diffs), np.int64), int(np.abs(diffs).sum())
    )


def _make_rows_to_send(rows: pa.Table, op: Longs, part: Longs, expected: int) -> RowsToSend:
    names = [*(f"c{at}" for at in range(rows.num_columns)), "n", "part"]
    return RowsToSend(pa.Table.from_arrays([*rows.columns, pa.array(op), pa.array(part)], names), expected)


def make_apply_statement(columns: TargetColumns, summary: Summary, *, is_small: bool) -> str:
    """Parameters: `token`, `epoch`, `time` and `expected`; if `is_small`, also the columns of the rows."""
    rows = "sent" if is_small else CHANGES
    steps = [
        *(_make_keyed_steps(columns, summary, rows) if columns.key else _make_counted_steps(columns, summary, rows))
    ]
    parts = [f"{name} AS {text}" for name, text in steps]
    if is_small:
        casts = ", ".join(f"c{at}::{kind} AS c{at}" for at, kind in enumerate(columns.types))
        lists = [f"%(c{at})s::text[]" for at in range(len(columns.names))]
        given = f"unnest({', '.join([*lists, '%(n)s::bigint[]', '%(part)s::bigint[]'])})"
        cast_rows = f"SELECT {casts}, n, part FROM permitted, {given} AS given({columns.sent}, n, part)"
        parts.insert(
            0, f"permitted AS MATERIALIZED (SELECT 1 FROM {columns.numbers_table} WHERE {_MAY_WRITE} FOR UPDATE)"
        )
        parts.insert(1, f"sent AS MATERIALIZED ({cast_rows})")
    affected = " + ".join(f"(SELECT count(*) FROM {name})" for name, _ in steps if name not in _QUERIES)
    return f"WITH {', '.join(parts)} {make_number_update(columns, affected)}"


def make_number_update(columns: TargetColumns, affected: str) -> str:
    """Store the transaction number, if the number of affected rows (`affected`) is the expected one."""
    moved = f"SET time = %(time)s, written = now(), lacking = %(expected)s - ({affected})"
    return f"UPDATE {columns.numbers_table} {moved} WHERE {_MAY_WRITE} RETURNING time"


def _make_keyed_steps(columns: TargetColumns, summary: Summary, rows: str) -> Iterable[tuple[str, str]]:
    """Delete, update, insert, in this order: a new row may reuse a value of a unique index."""
    others = [at for at in range(len(columns.names)) if at not in columns.key] or columns.key
    for part in sorted(summary.parts[REMOVED]):
        using = f"DELETE FROM {columns.table} t USING {rows} s WHERE {_match_key(columns, part, REMOVED)} RETURNING 1"
        yield f"removed{part}", f"({using})"
    for part in sorted(summary.parts[CHANGED]):
        set_to = ", ".join(f"{quote(columns.names[at])} = s.c{at}" for at in others)
        same = _match_key(columns, part, CHANGED)
        using = f"UPDATE {columns.table} t SET {set_to} FROM {rows} s WHERE {same} RETURNING 1"
        yield f"changed{part}", f"({using})"
    added = f"SELECT {columns.sent} FROM {rows} WHERE n = {ADDED}"
    yield "added", f"(INSERT INTO {columns.table} ({columns.listed}) {added} RETURNING 1)"


def _match_key(columns: TargetColumns, part: int, op: int) -> str:
    """The condition that a row `t` of the table has the key of a row `s`."""
    conditions = [
        f"t.{quote(columns.names[at])} IS NULL" if part >> bit & 1 else f"t.{quote(columns.names[at])} = s.c{at}"
        for bit, at in enumerate(columns.key)
    ]
    return " AND ".join([f"s.n = {op}", f"s.part = {part}", *conditions])


def _make_counted_steps(columns: TargetColumns, summary: Summary, rows: str) -> Iterable[tuple[str, str]]:
    """Delete the given number of copies of each removed row, and insert the added ones."""
    if summary.has_removals:
        image = f'ROW({columns.sent})::text COLLATE "C"'
        there = ", ".join(f"t.{quote(name)}" for name in columns.names)
        yield "wanted", f"(SELECT {image} AS image, -sum(n) AS n FROM {rows} WHERE n < 0 GROUP BY 1)"
        match = f'FROM ONLY {columns.table} t JOIN wanted w ON ROW({there})::text COLLATE "C" = w.image'
        nearby = _limit_search(columns, summary, rows)
        number = "row_number() OVER (PARTITION BY w.image) AS copy"
        yield "found", f"(SELECT t.ctid AS place, w.n, {number} {match}{nearby})"
        places = "ARRAY(SELECT place FROM found WHERE copy <= n)"
        yield "removed", f"(DELETE FROM ONLY {columns.table} WHERE ctid = ANY({places}) RETURNING 1)"
    copies = f"SELECT {columns.sent} FROM {rows}, generate_series(1, n) WHERE n > 0"
    yield "added", f"(INSERT INTO {columns.table} ({columns.listed}) {copies} RETURNING 1)"


def _limit_search(columns: TargetColumns, summary: Summary, rows: str) -> str:
    """Limit the rows whose texts are compared, by a column that has an index or many different values."""
    kinds = columns.types
    usable = [at for at in summary.distinct if not kinds[at].startswith("json") and not kinds[at].endswith("[]")]
    if not usable:
        return ""
    most = max(usable, key=lambda at: summary.distinct[at])
    best = columns.index if columns.index in usable else most
    return f" WHERE t.{quote(columns.names[best])} IN (SELECT c{best} FROM {rows} WHERE n < 0)"
