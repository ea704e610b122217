"""Limit the number of concurrent shape requests: excess requests get 503 at once, with the time to retry.

The counts change only in the event loop, so they need no lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from evertide.runtime import Runtime
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.refusals import KNOWN_ERROR, Refusal

__all__ = ["Admission"]

T = TypeVar("T")

_RETRY_AFTER_S = 6
_SPREAD_S = 5


class Admission:
    def __init__(self, options: ShapeOptions, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self.clients = 0
        self.newcomers = 0

    async def count_stream(self, blocks: AsyncIterator[T]) -> AsyncIterator[T]:
        """Count a stream while it lasts. It is never refused: its request was admitted and its headers are sent."""
        self.clients += 1
        try:
            async for block in blocks:
                yield block
        finally:
            self.clients -= 1

    @contextmanager
    def admit(self, *, is_newcomer: bool) -> Iterator[None]:
        options = self._options
        if self.clients >= options.clients_max or (is_newcomer and self.newcomers >= options.newcomers_max):
            known = {"code": "concurrent_request_limit_exceeded", "message": "Too many requests at the same time"}
            after_s = _RETRY_AFTER_S + int(self._runtime.random() * _SPREAD_S)
            raise Refusal(503, known, {"retry-after": str(after_s), KNOWN_ERROR: "true"})
        self.clients += 1
        self.newcomers += is_newcomer
        try:
            yield
        finally:
            self.clients -= 1
            self.newcomers -= is_newcomer
