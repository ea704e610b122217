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

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline

__all__ = ["Compared", "compared", "recomputed"]

_TOLERANCE = 1e-9

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    view: str
    rows: int
    missing: tuple[Row, ...] = ()
    """Rows that Spark computes, and that the view lacks."""
    surplus: tuple[Row, ...] = ()

    @property
    def is_same(self) -> bool:
        return not self.missing and not self.surplus


def recomputed(pipeline: Pipeline, queries: dict[str, str], time: int) -> Iterator[Compared]:
    """`queries` are by view. A failed view is compared as of its last time before the failure."""
    for name, text in queries.items():
        view = pipeline.view(name)
        at = min(time, view.time)
        yield compared(name, view.as_of(at).to_arrow(), pipeline.query(text, as_of=at))


def compared(name: str, held: pa.Table, expected: pa.Table) -> Compared:
    """Compare columns by position, because the query may name them differently."""
    found, wanted = _counted(held), _counted(expected)
    surplus, missing = list((found - wanted).elements()), list((wanted - found).elements())
    surplus, missing = _unmatched(surplus, missing)
    return Compared(name, held.num_rows, tuple(missing), tuple(surplus))


def _counted(rows: pa.Table) -> Counter[Row]:
    columns = [[_frozen(value) for value in column.to_pylist()] for column in rows.columns]
    return Counter(zip(*columns, strict=True)) if columns else Counter({(): rows.num_rows})


def _frozen(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, list):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, dict):
        return tuple((key, _frozen(each)) for key, each in value.items())
    return value


def _unmatched(left: Sequence[Row], right: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows without a match, where floats within the tolerance count as equal."""
    rest = sorted(right, key=_order)
    alone = []
    for row in sorted(left, key=_order):
        match = next((other for other in rest if _is_close(row, other)), None)
        if match is None:
            alone.append(row)
        else:
            rest.remove(match)
    return alone, rest


def _order(row: Row) -> tuple[str, ...]:
    return tuple(repr(value) for value in row)


def _is_close(left: Any, right: Any) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_is_close, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=_TOLERANCE)
    return bool(left == right)
