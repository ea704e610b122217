"""Positions, fragments and offers of sources that generate each row from its number.

A position is JSON, `{"next": 5000}`: the number of the next row. A fragment is `{"first": 0, "count": 5000}`. No rows
are stored, as the rows of a range can be generated again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from evertide.errors import Unexpected
from evertide.journal.records import Fragment, Place
from evertide.runtime import Runtime
from evertide.sources.contract import Limit, Offer
from evertide.sources.generated.rate import RateLimit

__all__ = ["RowRange", "Series"]

T = TypeVar("T")


class _Position(msgspec.Struct, frozen=True):
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
        return _encode(_Position(0))

    def offer(self, position: str, limit: Limit) -> Offer | None:
        first = self._decode(position, _Position).next
        count = min(self._per_transaction, max(1, limit.rows))
        if self._count is not None:
            count = min(count, self._count - first)
        count = self._rate_limit.count_due(first, count) if count > 0 else 0
        if not count:
            return None
        return Offer(_encode(_Position(first + count)), (Place(_encode(RowRange(first, count))),), count)

    def decode_range(self, fragment: Fragment) -> RowRange:
        if not isinstance(fragment, Place):
            raise Unexpected(where=f"source {self._source!r}", why="a generated source received a staged fragment")
        return self._decode(fragment.where, RowRange)

    def _decode(self, text: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            why = f"{text!r} is not a position or fragment of a generated source: {error}"
            raise Unexpected(where=f"source {self._source!r}", why=why) from error


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
