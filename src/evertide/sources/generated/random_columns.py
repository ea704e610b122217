"""Generate a column of any type, as a function of a seed and the numbers of its rows.

The number of a row determines 64 random bits (`evertide.sources.generated.seeded`), and these determine the value. So a
value does not depend on other rows or on the batch in which it is generated.

1. Integers, decimals, dates and times have a range of whole units, [low, high]. A sequence counts through the range and
   then starts again.
2. FLOAT and DOUBLE are distributed evenly over [low, high); a sequence counts up from low.
3. Texts are `length` lower-case letters; a sequence is `name-0`, `name-1`, and so on. BINARY is random bytes.
4. Lists and mappings have up to `length` elements; structs have all their fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.rows.columns import Longs, Words
from evertide.sources.generated.seeded import RandomStream, hash_numbers
from evertide.sources.values.kinds import INTEGERS, is_variant

_MASK = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only differences of naive times are taken
_DAY = 86_400_000_000
_YEAR_2026 = (20_454, 20_818)
"""The first and last day of 2026, in days since 1970."""

_NULLS, _DISTINCT, _CHILD, _LENGTH = 1, 2, 3, 1000


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a column is generated. `low` and `high` are in the type's units (`to_units`)."""

    name: str
    kind: Any
    seed: int
    low: float = 0
    high: float = 0
    is_sequence: bool = False
    distinct: int = 0
    """The maximum number of different values; 0 for no limit."""
    nulls: float = 0
    length: int = 8
    pool: Any = None
    """The values to choose from, instead of generated ones."""


def can_generate(kind: Any) -> bool:
    if is_variant(kind):
        return False
    if kinds.is_map(kind):
        return can_generate(kind.item_type) and (kind.key_type in INTEGERS or kinds.is_string(kind.key_type))
    if kinds.is_list(kind):
        return can_generate(kind.value_type)
    if kinds.is_struct(kind):
        return all(can_generate(field.type) for field in kind)
    flat = (kinds.is_floating, kinds.is_boolean, kinds.is_string, kinds.is_binary)
    return default_range(kind) is not None or any(is_kind(kind) for is_kind in flat)


def default_range(kind: Any) -> tuple[float, float] | None:
    """The range of values, in units, if no option sets another; None for types without a range."""
    if kind in INTEGERS:
        return 0, min(999_999, INTEGERS[kind][1])
    if kinds.is_floating(kind):
        return 0.0, 1.0
    if kinds.is_decimal(kind):
        return 0, min(10**kind.precision, 10 ** min(kind.scale + 4, 18)) - 1
    if kinds.is_date(kind):
        return _YEAR_2026
    if kinds.is_timestamp(kind):
        return _YEAR_2026[0] * _DAY, (_YEAR_2026[1] + 1) * _DAY - 1
    return (0, _DAY - 1) if kinds.is_time(kind) or kinds.is_duration(kind) else None


def to_units(value: Any, kind: Any) -> float:
    """Convert a value of the type to units: days, microseconds, or the last digit of a decimal."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if kinds.is_decimal(kind):
        return int(value.scaleb(kind.scale))
    return float(value) if kinds.is_floating(kind) else int(value)


def make_values(recipe: Recipe, numbers: Longs) -> Any:
    """Generate the column's values for these rows."""
    words = hash_numbers(numbers, _derive_seed(recipe.seed, 0))
    if recipe.distinct:
        words = hash_numbers((words % np.uint64(recipe.distinct)), _derive_seed(recipe.seed, _DISTINCT))
    array = recipe.pool.take(pa.array(words % len(recipe.pool))) if recipe.pool is not None else None
    array = _generate_flat(recipe, numbers, words) if array is None else array
    if not recipe.nulls:
        return array
    share = (hash_numbers(numbers, _derive_seed(recipe.seed, _NULLS)) >> np.uint64(11)) * 2.0**-53
    return pc.if_else(pa.array(share >= recipe.nulls), array, pa.scalar(None, array.type))


def _derive_seed(seed: int, stream: int) -> int:
    return RandomStream(seed & _MASK).fork(stream).bits()


def _generate_flat(recipe: Recipe, numbers: Longs, words: Words) -> Any:
    kind = recipe.kind
    if kinds.is_nested(kind):
        return _generate_nested(recipe, numbers, words)
    if kinds.is_string(kind) and recipe.is_sequence:
        return pc.binary_join_element_wise(pa.scalar(recipe.name), pa.array(numbers).cast(pa.string()), "-")
    if kinds.is_string(kind) or kinds.is_binary(kind):
        return _bytes(recipe, words)
    if kinds.is_boolean(kind):
        return pa.array((words >> np.uint64(63)) == 1)
    if kinds.is_floating(kind):
        share = (words >> np.uint64(11)) * 2.0**-53
        found = recipe.low + (numbers if recipe.is_sequence else share * (recipe.high - recipe.low))
        return pa.array(found).cast(kind)
    return _from_units(kind, _in_range(recipe, numbers, words))


def _in_range(recipe: Recipe, numbers: Longs, words: Words) -> Longs:
    """Computed in unsigned 64 bits, so that the widest range does not overflow."""
    low, span = int(recipe.low), int(recipe.high) - int(recipe.low) + 1
    picked = numbers.view(np.uint64) * np.uint64(_step(recipe.kind)) if recipe.is_sequence else words
    if span <= _MASK:
        picked = picked % np.uint64(span)
    return (picked + np.uint64(low & _MASK)).view(np.int64)


def _step(kind: Any) -> int:
    """The step of a sequence: seconds for times, one for decimals, and otherwise one unit."""
    if kinds.is_timestamp(kind) or kinds.is_time(kind) or kinds.is_duration(kind):
        return 1_000_000
    return int(10**kind.scale) if kinds.is_decimal(kind) and kind.scale < 18 else 1


def _from_units(kind: Any, found: Longs) -> Any:
    if kinds.is_decimal(kind):
        wide = np.stack([found, found >> 63], axis=1)
        return pa.Array.from_buffers(kind, len(found), [None, pa.py_buffer(wide.astype("<i8").tobytes())])
    if kinds.is_time(kind):
        return pa.array(found * 1000).cast(kind)
    if kinds.is_date(kind):
        return pa.array(found).cast(pa.int32()).cast(kind)
    return pa.array(found).cast(kind)


def _bytes(recipe: Recipe, words: Words) -> Any:
    """Each 64-bit word gives twelve letters, or eight bytes."""
    is_text = kinds.is_string(recipe.kind)
    each, base = (12, 26) if is_text else (8, 256)
    columns = []
    for at in range(recipe.length):
        if at % each == 0:
            left = hash_numbers(words, _derive_seed(recipe.seed, _LENGTH + at // each))
        columns.append((left % np.uint64(base)).astype(np.uint8) + (ord("a") if is_text else 0))
        left = left // np.uint64(base)
    content = np.stack(columns, axis=1).astype(np.uint8).tobytes() if columns else b""
    offsets = (np.arange(len(words) + 1) * recipe.length).astype("<i4").tobytes()
    return pa.Array.from_buffers(recipe.kind, len(words), [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def _generate_nested(recipe: Recipe, numbers: Longs, words: Words) -> Any:
    kind = recipe.kind
    inner = words.view(np.int64)
    if kinds.is_struct(kind):
        fields = [_child_recipe(recipe, at, field.type, field.name) for at, field in enumerate(kind)]
        children = [make_values(child, inner) for child in fields]
        return pa.Array.from_buffers(kind, len(numbers), [None], children=children)
    lengths = (words % np.uint64(recipe.length + 1)).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    elements = hash_numbers(np.repeat(inner, lengths) + position, _derive_seed(recipe.seed, _CHILD)).view(np.int64)
    buffers = [None, pa.py_buffer(offsets.astype("<i4").tobytes())]
    if not kinds.is_map(kind):
        child = make_values(_child_recipe(recipe, 0, kind.value_type, recipe.name), elements)
        return pa.Array.from_buffers(kind, len(numbers), buffers, children=[child])
    keys = make_values(replace(_child_recipe(recipe, 0, kind.key_type, "key"), is_sequence=True), position)
    items = make_values(_child_recipe(recipe, 1, kind.item_type, recipe.name), elements)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(numbers), buffers, children=[entries])


def _child_recipe(recipe: Recipe, at: int, kind: Any, name: str) -> Recipe:
    low, high = default_range(kind) or (0, 0)
    length = 3 if kinds.is_nested(kind) else 8
    return Recipe(name, kind, _derive_seed(recipe.seed, _CHILD + 1 + at), low, high, length=length)
