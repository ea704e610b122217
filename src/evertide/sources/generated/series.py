"""Positions, fragments and offers of sources that generate each row from its number.

A position is JSON, `{"next": 5000}`: the number of the next row. A fragment is `{"first": 0, "count": 5000}`. No rows
are stored, as the rows of a range can be generated again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from evertide.journal.records import Fragment, Place
from evertide.runtime import Runtime
from evertide.sources.contract import Limit, Offer, decode_place


class RateLimit:
    """Limits the rows per second of sources that could generate any number of rows at once.

    Counts from the first call, so that a pause before it is not caught up. A rate of 0 means no limit.
    """

    def __init__(self, per_s: float, runtime: Runtime) -> None:
        self._per_s = per_s
        self._runtime = runtime
        self._from: tuple[float, int] | None = None

    def count_due(self, position: int, wanted: int) -> int:
        """How many of the `wanted` rows after a position are due."""
        if not self._per_s:
            return wanted
        now_s = self._runtime.monotonic_s()
        self._from = self._from or (now_s, position)
        since_s, first = self._from
        due = first + int((now_s - since_s) * self._per_s)
        return max(0, min(wanted, due - position))


class _SeriesPosition(msgspec.Struct, frozen=True):
    next: int


class RowRange(msgspec.Struct, frozen=True):
    first: int
    count: int

    def split(self, most: int) -> Iterator[RowRange]:
        """Split a large range, whose rows may not fit into memory, into smaller ones."""
        for first in range(self.first, self.first + self.count, most):
            yield RowRange(first, min(most, self.first + self.count - first))


class Series:
    """A series of `count` numbered rows, or an endless one."""

    def __init__(self, *, source: str, count: int | None, per_transaction: int, rate: float, runtime: Runtime) -> None:
        self._source = source
        self._count = count
        self._per_transaction = per_transaction
        self._rate_limit = RateLimit(rate, runtime)

    @cached_property
    def start(self) -> str:
        return _encode(_SeriesPosition(0))

    def offer(self, position: str, limit: Limit) -> Offer | None:
        first = decode_place(Place(position), _SeriesPosition, self._source).next
        count = min(self._per_transaction, max(1, limit.rows))
        if self._count is not None:
            count = min(count, self._count - first)
        count = self._rate_limit.count_due(first, count) if count > 0 else 0
        if not count:
            return None
        return Offer(_encode(_SeriesPosition(first + count)), (Place(_encode(RowRange(first, count))),), count)

    def decode_range(self, fragment: Fragment) -> RowRange:
        return decode_place(fragment, RowRange, self._source)


@dataclass(frozen=True, slots=True)
class GeneratedSource:
    """The part of a source that all generators share."""

    name: str
    series: Series

    @property
    def start(self) -> str:
        return self.series.start

    def offer(self, position: str, limit: Limit) -> Offer | None:
        return self.series.offer(position, limit)

    def acknowledge(self, position: str) -> None:
        """Nothing to do: rows can be generated again."""

    def close(self) -> None:
        """Nothing is open."""


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
