"""Bytes that the JVM writes for Python, by way of a scratch file: byte arrays, each after its length."""

from __future__ import annotations

import struct as binary
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from evertide.scratch import using_scratch

__all__ = ["read_scratch", "split_frames"]


def read_scratch(path: Path) -> pa.Buffer:
    """What a file holds, mapped: it stays readable when the file is removed, so no disk ever has to see it."""
    with using_scratch():
        if not path.stat().st_size:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()


def split_frames(written: pa.Buffer) -> Iterator[pa.Buffer]:
    """Byte arrays, each after its length."""
    at = 0
    while at < written.size:
        (length,) = binary.unpack_from(">i", written, at)
        yield written.slice(at + 4, length)
        at += 4 + length
