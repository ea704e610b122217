"""Compares the content of views with what Spark computes from scratch.

Each materialized view is compared, as a multiset of rows, with its own query over its inputs, all at one time. A view
over another view is compared with that view's content: if all agree, all are correct. Rows must be equal, except that
FLOAT and DOUBLE may differ by one part in a billion, because Spark adds them in any order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evertide.rows.utf8 import convert_texts_to_bytes, is_valid_utf8

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline

_TOLERANCE = 1e-9

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    view: str
    rows: int
    missing: tuple[Row, ...] = ()
    """Rows that Spark computes, and that the view lacks."""
    surplus: tuple[Row, ...] = ()

    @property
    def is_same(self) -> bool:
        return not self.missing and not self.surplus


def recompute_views(pipeline: Pipeline, queries: dict[str, str], time: int) -> Iterator[Comparison]:
    """`queries` are by view. A failed view is compared as of its last time before the failure."""
    for name, text in queries.items():
        view = pipeline.view(name)
        at = min(time, view.time)
        yield compare_view(name, view.as_of(at).to_arrow(), pipeline.query(text, as_of=at))


def compare_view(name: str, stored: pa.Table, expected: pa.Table) -> Comparison:
    """Compare columns by position, because the query may name them differently."""
    if not (is_valid_utf8(stored) and is_valid_utf8(expected)):
        stored, expected = convert_texts_to_bytes(stored), convert_texts_to_bytes(expected)
    found, wanted = _count_rows(stored), _count_rows(expected)
    surplus, missing = list((found - wanted).elements()), list((wanted - found).elements())
    surplus, missing = _drop_matches(surplus, missing)
    return Comparison(name, stored.num_rows, tuple(missing), tuple(surplus))


def _count_rows(rows: pa.Table) -> Counter[Row]:
    columns = [[_make_hashable(value) for value in column.to_pylist()] for column in rows.columns]
    return Counter(zip(*columns, strict=True)) if columns else Counter({(): rows.num_rows})


def _make_hashable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, list):
        return tuple(_make_hashable(each) for each in value)
    if isinstance(value, dict):
        return tuple((key, _make_hashable(each)) for key, each in value.items())
    return value


def _drop_matches(left: Sequence[Row], right: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows without a match, where floats within the tolerance count as equal."""
    rest = sorted(right, key=_order)
    unmatched = []
    for row in sorted(left, key=_order):
        match = next((other for other in rest if _is_close(row, other)), None)
        if match is None:
            unmatched.append(row)
        else:
            rest.remove(match)
    return unmatched, rest


def _order(row: Row) -> tuple[str, ...]:
    return tuple(repr(value) for value in row)


def _is_close(left: Any, right: Any) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_is_close, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=_TOLERANCE)
    return bool(left == right)
