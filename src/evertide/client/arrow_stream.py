"""Read Arrow from an HTTP response as it arrives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa

from evertide.errors import Unavailable

__all__ = ["batches_of", "table_of"]


class _Incoming(io.RawIOBase):
    """The bytes of a response as a readable file."""

    def __init__(self, response: httpx.Response) -> None:
        self._pieces = response.iter_bytes()
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def batches_of(response: httpx.Response) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        reader = pa.ipc.open_stream(io.BufferedReader(_Incoming(response)))
    except pa.ArrowException as error:
        raise _broken(response, error) from error
    return reader.schema, _each(reader, response)


def _each(reader: Any, response: httpx.Response) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise _broken(response, error) from error


def _broken(response: httpx.Response, error: Exception) -> Unavailable:
    return Unavailable(path=str(response.request.url), why=f"the answer ended before it was complete: {error}")


def table_of(response: httpx.Response) -> pa.Table:
    schema, batches = batches_of(response)
    return pa.Table.from_batches([*batches], schema)
