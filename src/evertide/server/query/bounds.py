"""Memory limits of a query, and of a Spark worker: its heap, and all of its processes during one query."""

from __future__ import annotations

from evertide.errors import LimitExceeded
from evertide.settings import Settings

_HEAP_MIN = 512 * 1024 * 1024
"""Spark does not start with less."""
_BESIDE_HEAP = 512 * 1024 * 1024
"""Buffers of the JVM, and rows in the Python processes that read for it."""


def choose_heap_bytes(settings: Settings) -> int:
    return max(_HEAP_MIN, settings.query_memory_bytes)


def choose_spark_bytes(settings: Settings) -> int:
    return choose_heap_bytes(settings) + _BESIDE_HEAP


def make_memory_error(limit_bytes: int) -> LimitExceeded:
    why = f"the query needs more than {limit_bytes} bytes of memory (query_memory_bytes)"
    return LimitExceeded(where="query", why=why)
