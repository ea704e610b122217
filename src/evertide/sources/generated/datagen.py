"""The connector `datagen`: generates rows for any table from a seed.

    CREATE TABLE t (id BIGINT NOT NULL, ..., PRIMARY KEY (id)) USING datagen OPTIONS (rows '1000000', updates '0.2')

| option | meaning |
|---|---|
| rows | the total number of rows; endless if empty |
| rows_per_transaction | the maximum number of rows of a transaction; 1000 |
| rate | rows per second; 0, the default, for no limit |
| seed | the same seed gives the same rows; 0 |
| updates, deletes | the share of rows that update or delete an earlier row, by its key; 0 |
| columns.<name>.min, .max | the range of values |
| columns.<name>.distinct | the approximate maximum number of different values |
| columns.<name>.values | the possible values, separated by commas |
| columns.<name>.nulls | the share of NULL; 0 |
| columns.<name>.length | of texts and BINARY: 8; the maximum of lists and mappings: 3 |
| columns.<name>.kind | sequence or random; the first column of the key is a sequence, all others are random |

Row n is a function of (seed, n) (`evertide.sources.generated.random_columns`). An update has the key of an earlier row
and new values, a delete has only the key. A position is the number of the next row, a fragment is a range of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.journal.records import Fragment
from evertide.options import Options
from evertide.rows.columns import Longs
from evertide.runtime import Runtime
from evertide.sources.contract import DELETE, UPSERT, Rows, TableDeclaration
from evertide.sources.generated.random_columns import Recipe, can_generate, default_range, make_values, to_units
from evertide.sources.generated.seeded import RandomStream, hash_numbers
from evertide.sources.generated.series import GeneratedSource, RowRange, Series
from evertide.sources.values.fit import Ops, make_rows_schema
from evertide.sources.values.kinds import sql_name
from evertide.sources.values.values import Misfit, parse_value

_BATCH_ROWS = 50_000
_OPS, _EARLIER, _COLUMNS = 1, 2, 100


@dataclass(frozen=True, slots=True)
class DatagenSource(GeneratedSource):
    declaration: TableDeclaration
    recipes: tuple[Recipe, ...]
    seed: int
    updates: float
    deletes: float

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.declaration.name,)

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        for part in self.series.decode_range(fragment).split(_BATCH_ROWS):
            yield Rows(self.declaration.name, self._rows(part))

    def _rows(self, part: RowRange) -> pa.Table:
        numbers = np.arange(part.first, part.first + part.count, dtype=np.int64)
        ops, key_numbers = self._draw_changes(numbers)
        is_delete = pa.array(ops == DELETE)
        arrays = []
        for recipe in self.recipes:
            if recipe.name in self.declaration.key:
                arrays.append(make_values(recipe, key_numbers))
            else:
                array = make_values(recipe, numbers)
                arrays.append(pc.if_else(is_delete, pa.scalar(None, array.type), array) if self.deletes else array)
        return pa.Table.from_arrays([*arrays, pa.array(ops)], schema=make_rows_schema(self.declaration))

    def _draw_changes(self, numbers: Longs) -> tuple[Ops, Longs]:
        """The operation of each row, and the number of the row whose key it has: itself, or an earlier row."""
        share = (hash_numbers(numbers, _derive_seed(self.seed, _OPS)) >> np.uint64(11)) * 2.0**-53
        earlier = hash_numbers(numbers, _derive_seed(self.seed, _EARLIER)) % np.maximum(numbers, 1).view(np.uint64)
        is_change = (share < self.deletes + self.updates) & (numbers > 0)
        ops = np.where((share < self.deletes) & is_change, DELETE, UPSERT).astype(np.int8)
        return ops, np.where(is_change, earlier.view(np.int64), numbers)


def _derive_seed(seed: int, stream: int) -> int:
    return RandomStream(seed).fork(stream).bits()


def open_datagen(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, _base: Path) -> DatagenSource:
    (declaration,) = tables
    options = declaration.read_options()
    seed = options.integer("seed", 0)
    series = Series(
        source=name,
        count=options.integer("rows", 0) if options.text("rows") else None,
        per_transaction=options.integer("rows_per_transaction", 1000, least=1),
        rate=options.number("rate", 0),
        runtime=runtime,
    )
    updates, deletes = (options.number(share, 0, most=1) for share in ("updates", "deletes"))
    if (updates or deletes) and not declaration.key:
        raise options.refusal("updates" if updates else "deletes", "needs a table with a PRIMARY KEY")
    if updates + deletes > 1:
        raise options.refusal("updates", "and the option 'deletes' add up to more than 1")
    recipes = tuple(_read_recipe(options, declaration, at, seed) for at in range(len(declaration.schema)))
    options.check_unknown()
    return DatagenSource(name, series, declaration, recipes, seed, updates, deletes)


def _read_recipe(options: Options, declaration: TableDeclaration, at: int, seed: int) -> Recipe:
    field = declaration.schema.field(at)
    prefix = f"columns.{field.name}."
    if not can_generate(field.type):
        why = f"column {field.name!r} is {sql_name(field.type)}, a type that datagen cannot generate"
        raise InvalidInput(where=options.where, why=why)
    is_key = field.name in declaration.key
    usual = "sequence" if declaration.key[:1] == (field.name,) else "random"
    low, high = _read_bounds(options, prefix, field.type)
    nulls = options.number(prefix + "nulls", 0, most=1)
    if nulls and (is_key or not field.nullable):
        raise options.refusal(prefix + "nulls", "is greater than 0, but the column is NOT NULL")
    return Recipe(
        name=field.name,
        kind=field.type,
        seed=_derive_seed(seed, _COLUMNS + at),
        low=low,
        high=high,
        is_sequence=options.choice(prefix + "kind", ("sequence", "random"), usual) == "sequence",
        distinct=options.integer(prefix + "distinct", 0),
        nulls=nulls,
        length=options.integer(prefix + "length", 3 if pa.types.is_nested(field.type) else 8),
        pool=_read_pool(options, prefix + "values", field.type),
    )


def _read_bounds(options: Options, prefix: str, kind: Any) -> tuple[float, float]:
    usual = default_range(kind)
    low, high = (_read_bound(options, prefix + end, kind, usual) for end in ("min", "max"))
    found_low, found_high = usual or (0, 0)
    found_low = found_low if low is None else low
    found_high = max(found_high, found_low) if high is None else high
    if high is not None and low is None:
        found_low = min(found_low, found_high)
    if found_low > found_high:
        raise options.refusal(prefix + "min", f"is greater than '{prefix}max'")
    return found_low, found_high


def _read_bound(options: Options, name: str, kind: Any, usual: tuple[float, float] | None) -> float | None:
    text = options.text(name)
    if not text:
        return None
    if usual is None:
        raise options.refusal(name, f"is not allowed: values of type {sql_name(kind)} have no range")
    found = to_units(_parse_option(options, name, text, kind), kind)
    if not pa.types.is_floating(kind) and not -(1 << 63) <= found < 1 << 63:
        raise options.refusal(name, f"is {text!r}: datagen generates values of at most 64 bits")
    return found


def _parse_option(options: Options, name: str, text: str, kind: Any) -> Any:
    try:
        return parse_value(text, kind)
    except Misfit as error:
        raise options.refusal(name, f"does not fit the column: {error}") from error


def _read_pool(options: Options, name: str, kind: Any) -> Any:
    text = options.text(name)
    if not text:
        return None
    return pa.array([_parse_option(options, name, one.strip(), kind) for one in text.split(",")], kind)
