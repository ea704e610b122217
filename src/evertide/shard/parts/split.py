"""Divide the parts of a read into tasks that can be read independently: pure.

One part may retract what another adds. Tasks are correct only if all changes of a row are in one task, or if they need
not be added up:

1. *Whole parts*, if none has a retraction: every change adds rows, so the content is all of them. Parts are distributed
   over tasks by size.
2. *Ranges*: one column is cut into spans, and each task adds up the rows of one span from all parts that can have any.
   Equal rows have equal values, so they are in one task. Compaction sorts parts by their first columns: large parts are
   read once, and the small recent ones, which overlap them all, by every task.
3. *One task*, if tasks would read more than twice the data, or one of them most of it.

The changes between two times are added up per time: parts without a common time are independent (`split_by_time`).

Statistics may be wider than the values, never narrower (`evertide.shard.parts.statistics`), and every task reads a part
without statistics, so rule 2 always holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa

from evertide.shard.parts.part import Part, Predicate, may_match
from evertide.shard.read import TimeWindow

_READ_MOST = 2.0
_LARGEST_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Span:
    """The rows with low <= value < high; without a low end also those with NULL. None means unbounded."""

    column: str
    low: Any
    high: Any

    def may_hold(self, part: Part, schema: pa.Schema) -> bool:
        low = [] if self.low is None else [Predicate(self.column, ">=", self.low)]
        high = [] if self.high is None else [Predicate(self.column, "<", self.high)]
        if may_match(part, schema, [*low, *high]):
            return True
        return self.low is None and may_match(part, schema, [Predicate(self.column, "is null")])


@dataclass(frozen=True, slots=True)
class Group:
    """The parts of one task. Unless `only_adds`, their changes must be added up."""

    parts: tuple[Part, ...]
    only_adds: bool
    span: Span | None = None


def split(parts: Sequence[Part], schema: pa.Schema, bytes_max: int) -> list[Group]:
    whole, count = _group(parts), _count(parts, bytes_max)
    if whole.only_adds:
        return [_group(found) for found in _spread([(part,) for part in parts], count)]
    candidates = (_split_by_column(parts, schema, field, count) for field in schema) if count > 1 else ()
    found = [candidate for candidate in candidates if candidate]
    if not found:
        return [whole]
    return min(found, key=lambda candidate: max(_bytes(group.parts) for group in candidate))


def split_by_time(parts: Sequence[Part], window: TimeWindow, bytes_max: int) -> list[Group]:
    """Divide the parts of a window of changes: parts with a common time stay together."""
    together: list[list[Part]] = []
    last = -1
    for part in sorted(parts, key=lambda part: part.time_min):
        if max(part.time_min, window.lower) > last:
            together.append([])
        together[-1].append(part)
        last = max(last, min(part.time_max, window.upper - 1))
    clusters = [tuple(cluster) for cluster in together]
    return [Group(found, only_adds=False) for found in _spread(clusters, _count(parts, bytes_max))]


def _group(parts: Sequence[Part], span: Span | None = None) -> Group:
    """A single span may be plain even if others are not."""
    return Group(tuple(parts), only_adds=all(part.retractions == 0 for part in parts), span=span)


def _bytes(parts: Sequence[Part]) -> int:
    return sum(part.bytes for part in parts)


def _count(parts: Sequence[Part], bytes_max: int) -> int:
    return max(1, -(-_bytes(parts) // bytes_max))


def _spread(clusters: Sequence[tuple[Part, ...]], count: int) -> list[tuple[Part, ...]]:
    """Distribute the clusters over at most `count` lots of similar size: the largest first, each to the smallest
    lot."""
    lots: list[list[Part]] = [[] for _ in range(max(1, min(count, len(clusters))))]
    sizes = [0] * len(lots)
    for cluster in sorted(clusters, key=_bytes, reverse=True):
        least = sizes.index(min(sizes))
        lots[least] += cluster
        sizes[least] += _bytes(cluster)
    return [tuple(lot) for lot in lots]


def _split_by_column(parts: Sequence[Part], schema: pa.Schema, field: Any, count: int) -> list[Group] | None:
    """Tasks by spans of one column; None if its order is unknown, or the tasks would read too much."""
    if not is_ordered(field.type):
        return None
    ends = [None, *_bounds(parts, field, count), None]
    spans = [Span(field.name, low, high) for low, high in pairwise(ends)]
    if len(spans) < 2:
        return None
    groups = [_group([part for part in parts if span.may_hold(part, schema)], span) for span in spans]
    sizes = [_bytes(group.parts) for group in groups]
    total = _bytes(parts)
    return groups if sum(sizes) <= total * _READ_MOST and max(sizes) <= total * _LARGEST_SHARE else None


def is_ordered(kind: Any) -> bool:
    """Return whether values can be cut into ranges and equality is exact. Not for floats, because of NaN and -0.0."""
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in kinds)


def _bounds(parts: Sequence[Part], field: Any, count: int) -> Iterator[Any]:
    """Choose cuts at the low ends of parts, so that about as many bytes begin in each span."""
    known = [(part.ranges[field.name].low, part.bytes) for part in parts if field.name in part.ranges]
    lows = sorted((_parse_bound(low, field.type), size) for low, size in known if low is not None)
    share = sum(size for _, size in lows) / count
    cut, before = lows[0][0] if lows else None, 0
    for low, size in lows:
        if before >= share and low > cut:
            yield low
            cut, before = low, 0
        before += size


def _parse_bound(low: Any, kind: Any) -> Any:
    return Decimal(low) if pa.types.is_decimal(kind) else low
