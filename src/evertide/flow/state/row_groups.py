"""`RowGroupCache`: decoded row groups and open files of parts, within one memory budget for all arrangements.

The least recently used value is evicted first. A value larger than the whole budget is not cached, so the budget is
never exceeded. Values are immutable and may be in use after their eviction. Threads may share the cache; two that miss
the same value both read it, and either copy stays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from evertide.errors import Unexpected

Place = tuple[str, int]
"""A part's key, and the number of a row group in it; -1 is the file itself."""


class RowGroupCache:
    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 0:
            raise Unexpected(where="RowGroupCache", why=f"bytes_max is {bytes_max}, but must not be negative")
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._values: OrderedDict[Place, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._values)

    def get(self, part: str, number: int) -> Any | None:
        place = (part, number)
        with self._lock:
            found = self._values.get(place)
            if found is None:
                return None
            self._values.move_to_end(place)
            return found[0]

    def put(self, part: str, number: int, value: Any, size: int) -> None:
        with self._lock:
            self._remove((part, number))
            if size > self.bytes_max:
                return
            while self._bytes + size > self.bytes_max:
                self._remove(next(iter(self._values)))
            self._values[part, number] = (value, size)
            self._bytes += size

    def drop(self, part: str, count: int) -> None:
        """Remove a part with `count` row groups."""
        with self._lock:
            for number in range(-1, count):
                self._remove((part, number))

    def _remove(self, place: Place) -> None:
        found = self._values.pop(place, None)
        if found is not None:
            self._bytes -= found[1]
