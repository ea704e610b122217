"""Read Arrow from an HTTP response as it arrives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa

from evertide.client.errors import ServerUnavailable

__all__ = ["read_batches", "read_table"]


class _ResponseFile(io.RawIOBase):
    """The bytes of a response as a readable file."""

    def __init__(self, response: httpx.Response) -> None:
        self._blocks = response.iter_bytes()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def read_batches(response: httpx.Response) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        reader = pa.ipc.open_stream(io.BufferedReader(_ResponseFile(response)))
    except pa.ArrowException as error:
        raise _make_error(response, error) from error
    return reader.schema, _read_batches(reader, response)


def _read_batches(reader: Any, response: httpx.Response) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise _make_error(response, error) from error


def _make_error(response: httpx.Response, error: Exception) -> ServerUnavailable:
    return ServerUnavailable(path=str(response.request.url), why=f"the answer ended before it was complete: {error}")


def read_table(response: httpx.Response) -> pa.Table:
    schema, batches = read_batches(response)
    return pa.Table.from_batches([*batches], schema)
