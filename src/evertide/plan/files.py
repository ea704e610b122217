"""Bytes that the JVM writes for Python, by way of a file: byte arrays, each after its length."""

from __future__ import annotations

import struct as binary
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

__all__ = ["framed", "taken_out"]


def taken_out(path: Path) -> pa.Buffer:
    """What a file holds, which is no more: so it never has to be written to a disk."""
    if path.stat().st_size:
        with pa.memory_map(str(path)) as source:
            found = source.read_buffer()
    else:
        found = pa.py_buffer(b"")
    path.unlink()
    return found


def framed(written: pa.Buffer) -> Iterator[pa.Buffer]:
    """Byte arrays, each after its length."""
    at = 0
    while at < written.size:
        (length,) = binary.unpack_from(">i", written, at)
        yield written.slice(at + 4, length)
        at += 4 + length
