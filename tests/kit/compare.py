"""Compares the rows of two collections as multisets: exactly, except that floats may differ slightly.

Spark adds floats in the order in which its tasks end, so the last digits of its sums differ from run to run. All other
values must be equal. NULL equals NULL, and NaN equals NaN.

1. Rows that are bitwise equal on both sides cancel out. The remaining rows are on one side only, or differ in floats.
2. The remaining rows are grouped by the columns without floats. Within a group, rows are matched one to one so that
   all floats of a pair are close. Sorting both sides by their floats would pair the wrong rows if two rows are nearly
   equal in the first float and differ in the second.

Another engine may return the same number with another type. Unless `exact_types`, such a column is compared by value:
exactly if it can be cast without loss, otherwise as floats; the last digit of a decimal may then differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from evertide.rows.changes import DIFF, consolidate_delta, expand
from tests.kit.ledger import delta_of

_ROWS_SHOWN = 5


class Differs(AssertionError):
    """A collection lacks the rows `missing`, or has the rows `surplus` too many. Both lists may be truncated."""

    def __init__(
        self,
        where: str,
        why: str,
        missing: Sequence[Mapping[str, Any]] = (),
        surplus: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.where, self.why = where, why
        self.missing, self.surplus = tuple(missing), tuple(surplus)
        lines = [f"{where}: {why}", *_show("missing", self.missing), *_show("too many", self.surplus)]
        super().__init__("\n".join(lines))


def compare(
    found: pa.Table,
    expected: pa.Table,
    *,
    where: str = "collection",
    relative: float = 1e-9,
    absolute: float = 0.0,
    exact_types: bool = True,
) -> None:
    """Raise `Differs` unless both have the same rows, each the same number of times."""
    found, expected = plain(found), plain(expected)
    if found.schema.names != expected.schema.names:
        raise Differs(where, f"the columns are {found.schema.names}, but must be {expected.schema.names}")
    close = {name: absolute for name in found.schema.names if _holds_floats(found.schema.field(name).type)}
    for name in found.schema.names:
        if found.column(name).type != expected.column(name).type:
            if exact_types:
                types = f"{found.column(name).type}, but must be {expected.column(name).type}"
                raise Differs(where, f"the column {name!r} has the type {types}")
            found, expected, within = _alike(found, expected, name, where)
            if within is not None:
                close[name] = max(within, absolute)
    missing, surplus = _find_unmatched(*_only_on_one_side(found, expected), close, relative)
    if missing or surplus:
        told = f"{len(missing)} rows missing, {len(surplus)} too many; {found.num_rows} found"
        raise Differs(where, told, missing[:_ROWS_SHOWN], surplus[:_ROWS_SHOWN])


def compare_bits(found: pa.Table, expected: pa.Table, *, where: str = "collection") -> None:
    """Raise `Differs` unless both have the same rows, bit by bit; all NaN are equal."""
    missing, surplus = _only_on_one_side(found, expected)
    if missing or surplus:
        told = f"{len(missing)} rows missing, {len(surplus)} too many; {found.num_rows} found"
        raise Differs(where, told, missing[:_ROWS_SHOWN], surplus[:_ROWS_SHOWN])


def plain(table: pa.Table) -> pa.Table:
    """Convert types that differ only in form: timestamps to UTC, views and dictionaries to plain values."""
    fields = [pa.field(field.name, _plain_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _show(what: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"  {what}: {dict(row)!r}" for row in rows]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    for applies, form in _FORMS:
        if applies(kind):
            return form(kind)
    return kind


_FORMS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (kinds.is_dictionary, lambda kind: _plain_type(kind.value_type)),
    (kinds.is_timestamp, lambda kind: pa.timestamp("us", "UTC" if kind.tz else None)),
    (kinds.is_large_string, lambda _: pa.string()),
    (kinds.is_string_view, lambda _: pa.string()),
    (kinds.is_large_binary, lambda _: pa.binary()),
    (kinds.is_binary_view, lambda _: pa.binary()),
    (kinds.is_map, lambda kind: pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))),
    (kinds.is_list, lambda kind: pa.list_(_plain_type(kind.value_type))),
    (kinds.is_large_list, lambda kind: pa.list_(_plain_type(kind.value_type))),
    (kinds.is_struct, lambda kind: pa.struct([(field.name, _plain_type(field.type)) for field in kind])),
)


def _holds_floats(kind: pa.DataType) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return kinds.is_floating(kind) or any(map(_holds_floats, inner))


def _alike(found: pa.Table, expected: pa.Table, name: str, where: str) -> tuple[pa.Table, pa.Table, float | None]:
    """Both tables with one type for the column, and the tolerance of its values; None if they must be equal."""
    ours, theirs = found.column(name).type, expected.column(name).type
    try:
        if kinds.is_floating(ours) or kinds.is_floating(theirs):
            rounded = max((10.0**-kind.scale for kind in (ours, theirs) if kinds.is_decimal(kind)), default=0.0)
            return _cast(found, name, pa.float64()), _cast(expected, name, pa.float64()), rounded
        return found, _cast(expected, name, ours), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = f"the column {name!r} has the type {ours}, which cannot be compared with {theirs}: {error}"
        raise Differs(where, why) from error


def _cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))


def _only_on_one_side(found: pa.Table, expected: pa.Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The missing and the surplus rows, each repeated by its count."""
    both = pa.concat_tables([delta_of(found, 1), delta_of(expected.cast(found.schema), -1)])
    rest = consolidate_delta(both)
    diffs = np.asarray(rest.column(DIFF).combine_chunks())
    surplus = rest.filter(pa.array(diffs > 0))
    missing = rest.filter(pa.array(diffs < 0))
    turned = delta_of(missing.drop_columns([DIFF]), 1).set_column(
        missing.num_columns - 1, rest.schema.field(DIFF), pa.array(-diffs[diffs < 0])
    )
    return expand(turned).to_pylist(), expand(surplus).to_pylist()


def _find_unmatched(
    missing: list[dict[str, Any]], surplus: list[dict[str, Any]], close: Mapping[str, float], relative: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if not close or not missing or not surplus:
        return missing, surplus
    left: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    groups: dict[Hashable, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for side, rows in enumerate((missing, surplus)):
        for row in rows:
            exact = tuple(_hashable(value) for name, value in row.items() if name not in close)
            groups.setdefault(exact, ([], []))[side].append(row)
    for these, those in groups.values():
        pairs = _match(these, those, close, relative)
        left[0].extend(row for at, row in enumerate(these) if at not in pairs.values())
        left[1].extend(row for at, row in enumerate(those) if at not in pairs)
    return left


def _match(
    these: list[dict[str, Any]], those: list[dict[str, Any]], close: Mapping[str, float], relative: float
) -> dict[int, int]:
    """A maximum matching of close rows (by augmenting paths): positions in `those` to positions in `these`."""
    near = [
        [
            at
            for at, that in enumerate(those)
            if all(_is_close(this[name], that[name], relative, within) for name, within in close.items())
        ]
        for this in these
    ]
    pairs: dict[int, int] = {}

    def place(this: int, tried: set[int]) -> bool:
        for that in near[this]:
            if that not in tried:
                tried.add(that)
                if that not in pairs or place(pairs[that], tried):
                    pairs[that] = this
                    return True
        return False

    for this in range(len(these)):
        place(this, set())
    return pairs


def _is_close(this: Any, that: Any, relative: float, absolute: float) -> bool:
    if isinstance(this, float) and isinstance(that, float):
        return math.isclose(this, that, rel_tol=relative, abs_tol=absolute) or (math.isnan(this) and math.isnan(that))
    if isinstance(this, (list, tuple)) and isinstance(that, (list, tuple)):
        return _all_close(this, that, relative, absolute)
    if isinstance(this, dict) and isinstance(that, dict):
        return this.keys() == that.keys() and _all_close(this.values(), that.values(), relative, absolute)
    return type(this) is type(that) and bool(this == that)


def _all_close(these: Iterable[Any], those: Iterable[Any], relative: float, absolute: float) -> bool:
    left, right = list(these), list(those)
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(_is_close(this, that, relative, absolute) for this, that in pairs)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)
