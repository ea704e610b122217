"""Sources whose rows are numbered and can be made from their numbers: positions, fragments and offers of such.

Where it lies: a position is JSON, `{"next": 5000}`, the number of the next row; a fragment is `{"first": 0, "count":
5000}`. Nothing is stored, as the rows of a range can be made again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from evertide.errors import InvalidInput
from evertide.journal.records import Fragment, Place
from evertide.runtime import Runtime
from evertide.sources.contract import Limit, Offer
from evertide.sources.generated.rate import Pace

__all__ = ["Range", "Series"]

T = TypeVar("T")


class _Position(msgspec.Struct, frozen=True):
    next: int


class Range(msgspec.Struct, frozen=True):
    first: int
    count: int

    def parts(self, most: int) -> Iterator[Range]:
        """So that a large range is never made at once."""
        for first in range(self.first, self.first + self.count, most):
            yield Range(first, min(most, self.first + self.count - first))


class Series:
    """Rows with the numbers from 0 on, in all or without end."""

    def __init__(self, *, source: str, count: int | None, per_transaction: int, rate: float, runtime: Runtime) -> None:
        self._source = source
        self._count = count
        self._per_transaction = per_transaction
        self._pace = Pace(rate, runtime)

    @cached_property
    def start(self) -> str:
        return _text(_Position(0))

    def offer(self, position: str, limit: Limit) -> Offer | None:
        first = self._decoded(position, _Position).next
        count = min(self._per_transaction, max(1, limit.rows))
        if self._count is not None:
            count = min(count, self._count - first)
        count = self._pace.room(first, count) if count > 0 else 0
        if not count:
            return None
        return Offer(_text(_Position(first + count)), (Place(_text(Range(first, count))),), count)

    def range_of(self, fragment: Fragment) -> Range:
        if not isinstance(fragment, Place):
            raise InvalidInput(where=f"source {self._source!r}", why="a staged fragment is none of its own")
        return self._decoded(fragment.where, Range)

    def _decoded(self, text: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidInput(where=f"source {self._source!r}", why=f"{text!r} is not its own: {error}") from error


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
