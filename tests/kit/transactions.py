"""Generates random transactions for any tables from a seed; few transactions cover all kinds of changes.

Values come from small pools, so that rows match in joins, share groups, tie and repeat. The first transaction inserts
into every table; then each round has every kind below once, in random order:

| kind | what it does |
|---|---|
| insert | new rows; for a table without a key also copies of existing rows |
| update | other values in existing rows, with the same key |
| delete | deletes some rows |
| move | changes the key of rows, or the first column if there is no key |
| mixed | all of the above |
| empty | nothing; not even a delta |
| skew | many rows that are equal in most columns |
| huge | `rows_huge` rows, once |
| churn | rows that are inserted and deleted in the same transaction, and others in reverse |
| clear | deletes all rows of a table |

Only existing rows are deleted, and keys are unique. Nullable columns have NULLs; floats may be NaN (with either sign),
infinite and -0.0, decimals as large as their type allows, and texts equal under a collation."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.errors import InvalidInput
from tests.kit.ledger import Ledger, Transaction, sample
from tests.kit.runtime import RandomStream

KINDS = ("insert", "update", "delete", "move", "mixed", "empty", "skew", "huge", "churn", "clear")

_NO_KEYS: Mapping[str, Sequence[str]] = MappingProxyType({})
_NO_POOLS: Mapping[str, Sequence[Any]] = MappingProxyType({})


def random_transactions(
    schemas: Mapping[str, pa.Schema],
    seed: int,
    *,
    keys: Mapping[str, Sequence[str]] = _NO_KEYS,
    pools: Mapping[str, Sequence[Any]] = _NO_POOLS,
    count: int = 20,
    rows_each: int = 8,
    rows_huge: int = 300,
) -> Iterator[Transaction]:
    """Generate `count` transactions. `keys` has columns by table, `pools` values by "column" or "table.column"."""
    tables = _Tables(schemas, RandomStream(seed), keys, pools, rows_huge)
    to_come: list[str] = ["insert"]
    was_huge = False
    for number in range(count):
        kind = to_come.pop()
        if kind == "huge" and was_huge:
            kind = "insert"
        was_huge = was_huge or kind == "huge"
        yield tables.transaction(kind, rows_huge if kind == "huge" else rows_each, everywhere=not number)
        if not to_come:
            to_come = [KINDS[at] for at in sample(tables.rng, len(KINDS), len(KINDS))]


class _Tables:
    def __init__(
        self,
        schemas: Mapping[str, pa.Schema],
        rng: RandomStream,
        keys: Mapping[str, Sequence[str]],
        pools: Mapping[str, Sequence[Any]],
        rows_huge: int,
    ) -> None:
        self.rng = rng
        self._schemas = dict(schemas)
        self._keys = {name: tuple(keys.get(name, ())) for name in schemas}
        self._ledger = Ledger(schemas)
        self._rows_huge = rows_huge
        self._pools = {
            (name, field.name): self._pool(name, field, pools) for name, schema in schemas.items() for field in schema
        }

    def _pool(self, table: str, field: pa.Field, pools: Mapping[str, Sequence[Any]]) -> list[Any]:
        given = pools.get(f"{table}.{field.name}", pools.get(field.name))
        if given is not None:
            return list(given)
        if field.name in self._keys[table] and kinds.is_integer(field.type):
            return list(range(self._rows_huge))
        return pool_of(field.type)

    def transaction(self, kind: str, rows: int, *, everywhere: bool) -> Transaction:
        if kind == "empty":
            return {}
        names = list(self._schemas)
        chosen = [name for name in names if everywhere or self.rng.below(3)] or [names[self.rng.below(len(names))]]
        for table in chosen:
            self._change(kind, table, rows)
        return self._ledger.commit()

    def _change(self, kind: str, table: str, rows: int) -> None:
        match kind:
            case "update" | "move":
                self._replace(table, rows, moves=kind == "move")
            case "delete":
                self._ledger.delete(table, self._some(table, rows))
            case "mixed":
                for part in ("insert", "update", "delete", "move"):
                    self._change(part, table, max(1, rows // 4))
            case "churn":
                self._churn(table, rows)
            case "clear":
                self._ledger.delete(table, range(self._ledger.rows(table).num_rows))
            case _:
                self._insert(table, rows + self.rng.below(rows), skewed=kind == "skew")

    def _insert(self, table: str, rows: int, *, skewed: bool) -> None:
        typical = self._row(table)
        fresh = [self._row(table, typical if skewed else None) for _ in range(rows)]
        if not self._keys[table]:
            held = self._ledger.rows(table)
            fresh += held.take(pa.array(self._some(table, rows // 4), pa.int64())).to_pylist()
        self._put(table, fresh)

    def _replace(self, table: str, rows: int, *, moves: bool) -> None:
        key = self._keys[table]
        moved = key or self._schemas[table].names[:1]
        changes = moved if moves else [name for name in self._schemas[table].names if name not in key]
        old = self._ledger.delete(table, self._some(table, rows)).to_pylist()
        fresh = [self._row(table) for _ in old]
        self._put(
            table,
            [
                {name: new[name] if name in changes and (moves or self.rng.below(2)) else row[name] for name in row}
                for row, new in zip(old, fresh, strict=True)
            ],
        )

    def _churn(self, table: str, rows: int) -> None:
        self._insert(table, rows, skewed=False)
        gone = self._ledger.delete(table, self._some(table, rows))
        self._ledger.insert(table, gone.slice(0, gone.num_rows // 2))

    def _some(self, table: str, rows: int) -> list[int]:
        return sample(self.rng, self._ledger.rows(table).num_rows, self.rng.below(rows + 1))

    def _put(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Insert rows, and delete existing ones with the same key; the last row of a key is kept."""
        key = self._keys[table]
        if key:
            latest = {tuple(row[name] for name in key): row for row in rows}
            held = self._ledger.rows(table).select(list(key)).to_pylist()
            self._ledger.delete(table, [at for at, row in enumerate(held) if tuple(row.values()) in latest])
            rows = list(latest.values())
        self._ledger.insert(table, pa.Table.from_pylist(rows, schema=self._schemas[table]))

    def _row(self, table: str, typical: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Random values; with a typical row, most values are copied from it."""
        row = {}
        for field in self._schemas[table]:
            if typical is not None and field.name not in self._keys[table] and self.rng.below(8):
                row[field.name] = typical[field.name]
            elif field.nullable and not self.rng.below(6):
                row[field.name] = None
            else:
                row[field.name] = self._value(table, field.name)
        return row

    def _value(self, table: str, column: str) -> Any:
        """Low keys are more frequent than high ones: so some keys repeat, and a huge transaction still has new ones."""
        pool = self._pools[table, column]
        limit = self.rng.below(len(pool)) + 1 if column in self._keys[table] else len(pool)
        return pool[self.rng.below(limit)]


def pool_of(kind: pa.DataType) -> list[Any]:
    """The values of a type to choose from. Integers are small, so that sums do not overflow."""
    for applies, pool in _POOLS:
        if applies(kind):
            return list(pool)
    if kinds.is_decimal(kind):
        largest = 10**kind.precision - 1
        unscaled = [max(-largest, min(value, largest)) for value in (-250, -1, 0, 1, 99, 12_345, largest, -largest)]
        return [Decimal(f"{value}E{-kind.scale}") for value in unscaled]  # exact, whatever the context
    if kinds.is_timestamp(kind):
        return [time if kind.tz else time.replace(tzinfo=None) for time in _TIMES]
    if kinds.is_list(kind):
        first, *_, last = pool_of(kind.value_type)
        return [[], [first], [last, first], [first, first], *([[None, last]] if kind.value_field.nullable else [])]
    if kinds.is_struct(kind):
        each = [pool_of(field.type) for field in kind]
        return [{field.name: pool[at % len(pool)] for field, pool in zip(kind, each, strict=True)} for at in range(6)]
    if kinds.is_map(kind):
        names, values = pool_of(kind.key_type), pool_of(kind.item_type)
        return [[], [(names[0], values[0])], [(names[0], values[-1]), (names[1], values[0])]]
    raise InvalidInput(where=str(kind), why="there are no values of this type to draw from; give a pool")


_TIMES = (
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, 0, 0, 4, 500_000, UTC),
    datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC),
    datetime(2026, 1, 1, 0, 10, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
)
"""Before the epoch, at the edges of windows and inside them, and in an hour that some time zones skip."""

_NANS = tuple(struct.unpack("<d", bits.to_bytes(8, "little"))[0] for bits in (0x7FF8 << 48, 0xFFF8 << 48))
"""NaN as in constants, and as x86 computes it: the same value with other bits."""

_POOLS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (kinds.is_boolean, (True, False)),
    (kinds.is_integer, (-1, 0, 1, 2, 3, 7)),
    (kinds.is_floating, (0.0, -0.0, 1.5, -2.25, 0.1, 1000.125, *_NANS, float("inf"), float("-inf"))),
    (kinds.is_string, ("", "a", "b", "ab", "B", "A", "a ", "ä€")),
    (kinds.is_binary, (b"", b"\x00", b"a", b"\xff\x00")),
    (kinds.is_date32, (date(1969, 12, 31), date(2024, 2, 29), date(2026, 1, 1), date(2026, 1, 2))),
    (kinds.is_time, tuple(at.time() for at in _TIMES)),
)
