"""Memory limits of a Spark worker: its heap, and all of its processes during one query."""

from __future__ import annotations

from evertide.settings import Settings

__all__ = ["heap_bytes", "spark_bytes"]

_HEAP_MIN = 512 * 1024 * 1024
"""Spark does not start with less."""
_BESIDE_HEAP = 512 * 1024 * 1024
"""Buffers of the JVM, and rows in the Python processes that read for it."""


def heap_bytes(settings: Settings) -> int:
    return max(_HEAP_MIN, settings.query_memory_bytes)


def spark_bytes(settings: Settings) -> int:
    return heap_bytes(settings) + _BESIDE_HEAP
