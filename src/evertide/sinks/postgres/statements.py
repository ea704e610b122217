"""What one transaction is to a table: rows that are sent, and the one statement that applies them.

The rows are a relation with the table's columns as `c0`, `c1`, ..., and

- with a key: `n` says what becomes of the row of its key (`GONE`, `CHANGED`, `COME`), `part` which columns of the key
  are NULL in it (a bit each): for each such pattern `=` and IS NULL find the row by an index, as IS NOT DISTINCT FROM
  would not;
- without one: `n` copies come (negative: go). Rows are equal if they are written alike, as `ROW(...)::text`: NULL, NaN
  and -0.0 are then what they are, in all types.

The statement deletes, updates and inserts, and then moves our number, all in one. It counts the rows that it met: if
they are not as many as expected, a constraint of our table of numbers refuses it. If the number is not ours to move,
because a successor has opened the sink or the transaction is there already, no row is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF, expanded
from evertide.rows.columns import Longs
from evertide.rows.digest import row_hashes
from evertide.sinks.postgres.types import texts

__all__ = [
    "CHANGES",
    "Columns",
    "Sent",
    "Summary",
    "apply_statement",
    "by_copies",
    "by_key",
    "move_statement",
    "quoted",
]

GONE, CHANGED, COME = -1, 0, 1
CHANGES = "pg_temp.evertide_changes"
"""Where many rows wait for the statement."""
_SLICE_ROWS = 20_000
_OURS = "token = %(token)s AND epoch = %(epoch)s AND time < %(time)s"
_QUERIES = ("wanted", "found")
"""Steps that change nothing."""


def quoted(*names: str) -> str:
    """As a statement with parameters has it."""
    return ".".join('"' + name.replace('"', '""').replace("%", "%%") + '"' for name in names)


@dataclass(frozen=True, slots=True)
class Columns:
    """Of the table, in the collection's order."""

    table: str
    marks: str
    """Both quoted."""
    names: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[int, ...]
    """Places of the key's columns."""
    index: int | None = None
    """Without a key: the place of a column that an index begins with."""

    @property
    def listed(self) -> str:
        return ", ".join(quoted(name) for name in self.names)

    @property
    def sent(self) -> str:
        return ", ".join(f"c{at}" for at in range(len(self.names)))


@dataclass(slots=True)
class Summary:
    """What the statement has to know of the rows of a transaction, piece by piece."""

    expected: int = 0
    """How many rows of the table they are."""
    has_removals: bool = False
    parts: dict[int, set[int]] = field(default_factory=lambda: {GONE: set(), CHANGED: set()})
    """With a key: for each of these, the patterns of NULL that occur."""
    distinct: dict[int, int] = field(default_factory=dict)
    """Without a key: of each column that is never NULL in a row that goes, about how many values it has there."""

    def take(self, sent: Sent, *, is_keyed: bool) -> None:
        self.expected += sent.expected
        ops = sent.rows["n"]
        if is_keyed:
            for op, found in self.parts.items():
                found.update(pc.unique(sent.rows.filter(pc.equal(ops, op))["part"]).to_pylist())
        gone = sent.rows.filter(pc.less(ops, 0))
        if gone.num_rows and not is_keyed:
            columns = [*self.distinct] if self.has_removals else range(gone.num_columns - 2)
            values = {at: gone[f"c{at}"] for at in columns}
            self.distinct = {
                at: pc.count_distinct(column).as_py() + self.distinct.get(at, 0)
                for at, column in values.items()
                if not column.null_count and not pa.types.is_nested(column.type)
            }
        self.has_removals = self.has_removals or gone.num_rows > 0


@dataclass(frozen=True, slots=True)
class Sent:
    """Rows of a transaction, with `n` and `part` at the end; and how many of the table they are."""

    rows: pa.Table
    expected: int

    @property
    def is_plain(self) -> bool:
        """Additions, each once."""
        return bool(pc.min(self.rows["n"]).as_py() > 0) and self.expected == self.rows.num_rows

    def texts(self) -> Iterator[pa.Table]:
        """The values as PostgreSQL writes them, some rows at a time."""
        return _texts(self.rows)

    def copies(self) -> Iterator[pa.Table]:
        """The same of rows that all come, without `n` and `part`: each row as often as it does."""
        names = [*self.rows.schema.names[:-2], DIFF]
        for rows in expanded(self.rows.drop_columns(["part"]).rename_columns(names)):
            yield from _texts(rows)


def _texts(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _SLICE_ROWS):
        some = rows.slice(start, _SLICE_ROWS)
        yield pa.table({name: texts(some[name]) for name in some.schema.names})


def by_key(changes: pa.Table, key: Sequence[str]) -> Sent | None:
    """What becomes of each key. None if a key has several rows."""
    diffs = changes[DIFF].to_numpy()
    hashes = row_hashes(changes.select(key))
    order = np.lexsort((diffs, hashes.low, hashes.high))
    high, low, ordered = hashes.high[order], hashes.low[order], diffs[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    pairs = again & (ordered == 1) & (np.roll(ordered, 1) == -1)
    if (np.abs(ordered) != 1).any() or (again != pairs).any():
        return None
    becomes = diffs.copy()
    becomes[order[pairs]] = CHANGED
    kept = np.sort(order[~np.roll(pairs, -1)])  # without the old rows of those that change
    rows = changes.drop_columns([DIFF]).take(pa.array(kept))
    part = np.zeros(len(kept), np.int64)
    for bit, column in enumerate(key):
        part |= rows[column].is_null().to_numpy().astype(np.int64) << bit
    return _sent(rows, becomes[kept], part, len(kept))


def by_copies(changes: pa.Table) -> Sent:
    """Without a key."""
    diffs = changes[DIFF].to_numpy()
    return _sent(changes.drop_columns([DIFF]), diffs, np.zeros(len(diffs), np.int64), int(np.abs(diffs).sum()))


def _sent(rows: pa.Table, op: Longs, part: Longs, expected: int) -> Sent:
    names = [*(f"c{at}" for at in range(rows.num_columns)), "n", "part"]
    return Sent(pa.Table.from_arrays([*rows.columns, pa.array(op), pa.array(part)], names), expected)


def apply_statement(columns: Columns, summary: Summary, *, is_small: bool) -> str:
    """Its parameters are `token`, `epoch`, `time` and `expected`; if it is small, the rows, too, by their names."""
    rows = "sent" if is_small else CHANGES
    steps = [*(_keyed(columns, summary, rows) if columns.key else _counted(columns, summary, rows))]
    parts = [f"{name} AS {text}" for name, text in steps]
    if is_small:
        casts = ", ".join(f"c{at}::{kind} AS c{at}" for at, kind in enumerate(columns.types))
        lists = [f"%(c{at})s::text[]" for at in range(len(columns.names))]
        given = f"unnest({', '.join([*lists, '%(n)s::bigint[]', '%(part)s::bigint[]'])})"
        made = f"SELECT {casts}, n, part FROM mine, {given} AS given({columns.sent}, n, part)"
        parts.insert(0, f"mine AS MATERIALIZED (SELECT 1 FROM {columns.marks} WHERE {_OURS} FOR UPDATE)")
        parts.insert(1, f"sent AS MATERIALIZED ({made})")
    met = " + ".join(f"(SELECT count(*) FROM {name})" for name, _ in steps if name not in _QUERIES)
    return f"WITH {', '.join(parts)} {move_statement(columns, met)}"


def move_statement(columns: Columns, met: str) -> str:
    """The number moves, if so many rows were met as expected."""
    moved = f"SET time = %(time)s, written = now(), lacking = %(expected)s - ({met})"
    return f"UPDATE {columns.marks} {moved} WHERE {_OURS} RETURNING time"


def _keyed(columns: Columns, summary: Summary, rows: str) -> Iterable[tuple[str, str]]:
    """Deletions first, then updates: what they free may be taken again."""
    others = [at for at in range(len(columns.names)) if at not in columns.key] or columns.key
    for part in sorted(summary.parts[GONE]):
        using = f"DELETE FROM {columns.table} t USING {rows} s WHERE {_same(columns, part, GONE)} RETURNING 1"
        yield f"gone{part}", f"({using})"
    for part in sorted(summary.parts[CHANGED]):
        set_to = ", ".join(f"{quoted(columns.names[at])} = s.c{at}" for at in others)
        using = f"UPDATE {columns.table} t SET {set_to} FROM {rows} s WHERE {_same(columns, part, CHANGED)} RETURNING 1"
        yield f"changed{part}", f"({using})"
    come = f"SELECT {columns.sent} FROM {rows} WHERE n = {COME}"
    yield "come", f"(INSERT INTO {columns.table} ({columns.listed}) {come} RETURNING 1)"


def _same(columns: Columns, part: int, op: int) -> str:
    """Whether a row of the table `t` is that of the key of a row of `s`."""
    met = [
        f"t.{quoted(columns.names[at])} IS NULL" if part >> bit & 1 else f"t.{quoted(columns.names[at])} = s.c{at}"
        for bit, at in enumerate(columns.key)
    ]
    return " AND ".join([f"s.n = {op}", f"s.part = {part}", *met])


def _counted(columns: Columns, summary: Summary, rows: str) -> Iterable[tuple[str, str]]:
    """Of the copies of a row that goes, as many as should."""
    if summary.has_removals:
        image = f'ROW({columns.sent})::text COLLATE "C"'
        there = ", ".join(f"t.{quoted(name)}" for name in columns.names)
        yield "wanted", f"(SELECT {image} AS image, -sum(n) AS n FROM {rows} WHERE n < 0 GROUP BY 1)"
        match = f'FROM ONLY {columns.table} t JOIN wanted w ON ROW({there})::text COLLATE "C" = w.image'
        nearby = _nearby(columns, summary, rows)
        number = "row_number() OVER (PARTITION BY w.image) AS copy"
        yield "found", f"(SELECT t.ctid AS place, w.n, {number} {match}{nearby})"
        places = "ARRAY(SELECT place FROM found WHERE copy <= n)"
        yield "gone", f"(DELETE FROM ONLY {columns.table} WHERE ctid = ANY({places}) RETURNING 1)"
    copies = f"SELECT {columns.sent} FROM {rows}, generate_series(1, n) WHERE n > 0"
    yield "come", f"(INSERT INTO {columns.table} ({columns.listed}) {copies} RETURNING 1)"


def _nearby(columns: Columns, summary: Summary, rows: str) -> str:
    """Which rows of the table are worth writing out: those that agree in a column that has an index, or many values."""
    kinds = columns.types
    usable = [at for at in summary.distinct if not kinds[at].startswith("json") and not kinds[at].endswith("[]")]
    if not usable:
        return ""
    most = max(usable, key=lambda at: summary.distinct[at])
    best = columns.index if columns.index in usable else most
    return f" WHERE t.{quoted(columns.names[best])} IN (SELECT c{best} FROM {rows} WHERE n < 0)"
