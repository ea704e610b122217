"""More rows than memory should hold, dealt out by their hash into slices that are taken up one after the other.

All changes of a row are in one slice: each can be summed up by itself. A slice is one of 2^n equal ranges of the hash
of all columns (`by_row`) or of those of a key (`by_columns`); or a range of times (`by_time`).
Until it is taken up it lies in a file without a name, which is gone with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from evertide.rows.changes import DIFF, TIME
from evertide.rows.columns import Longs
from evertide.rows.digest import row_hashes
from evertide.scratch import using_scratch

__all__ = ["SLICES_MAX", "Placing", "Slices", "by_columns", "by_row", "by_time", "slice_count"]

SLICES_MAX = 128
"""Each is a file that is open, of some 1,000 that a process has, and two may deal at once."""
Placing: TypeAlias = Callable[[pa.Table, int], Longs]
"""The slice, of so many, that each row belongs to."""
_OPTIONS = ipc.IpcWriteOptions(compression="lz4")


def slice_count(pieces: float) -> int:
    """The power of 2 that is as large at least."""
    count = 1
    while count < pieces:
        count *= 2
    return count


class Slices:
    """Of rows with `__diff`, with or without `__time`; two at least. Use it as a context manager."""

    def __init__(self, schema: pa.Schema, count: int, placing: Placing | None = None) -> None:
        self._schema = schema
        self.rows = [0] * count
        self.bytes = [0] * count
        """In memory, about."""
        self._placing = placing or by_row
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
        places = self._placing(rows, count)
        ordered = rows.take(pa.array(np.argsort(places, kind="stable")))
        end = 0
        row_bytes = rows.nbytes / max(1, rows.num_rows)
        for index, size in enumerate(np.bincount(places, minlength=count).tolist()):
            if size:
                with using_scratch():
                    self._writers[index].write_table(ordered.slice(end, size))
                self.rows[index] += size
                self.bytes[index] += int(size * row_bytes)
            end += size

    def scan(self, index: int) -> Iterator[pa.Table]:
        """What lies in one of them, as it was added. Nothing can be added to it after that."""
        file = self._opened[index]
        with using_scratch():
            self._writers[index].close()
            file.seek(0)
            yield from (pa.Table.from_batches([batch]) for batch in ipc.open_stream(file))

    def read(self, index: int) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *self.scan(index)])

    def take(self, index: int) -> pa.Table:
        """The same for the last time: its file is gone after that."""
        found = self.read(index)
        self._opened[index].close()
        return found


def by_row(rows: pa.Table, count: int) -> Longs:
    return _by_hash(rows.drop_columns([name for name in (TIME, DIFF) if name in rows.schema.names]), count)


def by_columns(names: Sequence[str]) -> Placing:
    """Rows that agree in these columns share a slice."""
    return lambda rows, count: _by_hash(rows.select([*names]), count)


def by_time(lower: int, upper: int) -> Placing:
    """Equal ranges of [lower, upper), in order."""

    def place(rows: pa.Table, count: int) -> Longs:
        found: Longs = (rows[TIME].to_numpy() - lower) * count // (upper - lower)
        return found

    return place


def _by_hash(columns: pa.Table, count: int) -> Longs:
    found: Longs = (row_hashes(columns).high >> np.uint64(64 - (count.bit_length() - 1))).astype(np.int64)
    return found
