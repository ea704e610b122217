"""More rows than memory should hold, dealt out by their hash into slices that are taken up one after the other.

All changes of a row are in one slice: each can be summed up by itself. A slice is one of 2^n equal ranges of the hash.
Until it is taken up it lies in a file without a name, which is gone with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from evertide.scratch import using_scratch
from evertide.shard.changes import DIFF, TIME
from evertide.shard.columns import Longs
from evertide.shard.digest import row_hashes

__all__ = ["SLICES_MAX", "Slices", "slice_count"]

SLICES_MAX = 128
"""Each is a file that is open, of some 1,000 that a process has, and two may deal at once."""
_OPTIONS = ipc.IpcWriteOptions(compression="lz4")


def slice_count(pieces: float) -> int:
    """The power of 2 that is as large at least."""
    count = 1
    while count < pieces:
        count *= 2
    return count


class Slices:
    """Of rows with `__diff`, with or without `__time`; two at least. Use it as a context manager."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        with using_scratch():
            self._opened = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115 - closed with all of it
            self._writers = [ipc.new_stream(file, schema, options=_OPTIONS) for file in self._opened]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._opened:
            with suppress(OSError):  # of bytes that are not written yet, and not needed any more
                file.close()

    def add(self, rows: pa.Table) -> None:
        count = len(self._writers)
        places = _places(rows, count)
        ordered = rows.take(pa.array(np.argsort(places, kind="stable")))
        end = 0
        for writer, size in zip(self._writers, np.bincount(places, minlength=count).tolist(), strict=True):
            if size:
                with using_scratch():
                    writer.write_table(ordered.slice(end, size))
            end += size

    def take(self, index: int) -> pa.Table:
        """What lies in one of them; it is asked for once."""
        with using_scratch(), self._opened[index] as file:
            self._writers[index].close()
            file.seek(0)
            return ipc.open_stream(file).read_all()


def _places(rows: pa.Table, count: int) -> Longs:
    """By row, the slice that it belongs to."""
    columns = rows.drop_columns([name for name in (TIME, DIFF) if name in rows.schema.names])
    found: Longs = (row_hashes(columns).high >> np.uint64(64 - (count.bit_length() - 1))).astype(np.int64)
    return found
