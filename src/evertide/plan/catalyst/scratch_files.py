"""Reads byte arrays that the JVM writes to a scratch file, each preceded by its length."""

from __future__ import annotations

import struct as binary
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from evertide.scratch import using_scratch

__all__ = ["read_scratch", "split_frames"]


def read_scratch(path: Path) -> pa.Buffer:
    """Map a file into memory. It stays readable after the file is removed."""
    with using_scratch():
        if not path.stat().st_size:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()


def split_frames(written: pa.Buffer) -> Iterator[pa.Buffer]:
    at = 0
    while at < written.size:
        (length,) = binary.unpack_from(">i", written, at)
        yield written.slice(at + 4, length)
        at += 4 + length
