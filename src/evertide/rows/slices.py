"""`Slices`: distribute more rows than fit in memory over files, and read them back slice by slice.

1. All changes of a row are in one slice, so each slice can be added up separately.
2. A slice is one of 2^n equal ranges of the hash of all columns (`choose_by_row`) or of a key's columns
   (`choose_by_columns`), or a range of times (`choose_by_time`).
3. A slice is a temporary file without a name, which disappears with the process, even after a crash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import IO, Self, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from evertide.rows.changes import DIFF, TIME
from evertide.rows.columns import Longs
from evertide.rows.digest import hash_rows
from evertide.scratch import using_scratch

SLICES_MAX = 128
"""Each slice is an open file. A process may have about 1,000 open files, and two `Slices` at once."""
ChooseSlices: TypeAlias = Callable[[pa.Table, int], Longs]
"""Returns the slice of each row, given the number of slices."""
_OPTIONS = ipc.IpcWriteOptions(compression="lz4")


def count_slices(minimum: float) -> int:
    """The smallest power of 2 that is at least `minimum`."""
    count = 1
    while count < minimum:
        count *= 2
    return count


class Slices:
    """Slices of rows with `__diff`, with or without `__time`; at least two. Use it as a context manager."""

    def __init__(self, schema: pa.Schema, count: int, choose_slices: ChooseSlices | None = None) -> None:
        self._schema = schema
        self.rows = [0] * count
        self.bytes = [0] * count
        """The approximate size in memory."""
        self._choose_slices = choose_slices or choose_by_row
        with ExitStack() as stack, using_scratch():
            self._files = [self._open_file(stack) for _ in range(count)]
            self._writers = [ipc.new_stream(file, schema, options=_OPTIONS) for file in self._files]
            stack.pop_all()  # `__exit__` closes the files

    def _open_file(self, stack: ExitStack) -> IO[bytes]:
        """A file that `stack` closes if one of the others cannot be made."""
        return stack.enter_context(tempfile.TemporaryFile())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            with suppress(OSError):  # buffered bytes that cannot be written are not needed
                file.close()

    def add(self, rows: pa.Table) -> None:
        count = len(self._writers)
        places = self._choose_slices(rows, count)
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
        """Yield the rows of a slice as they were added. Afterwards nothing can be added to it."""
        file = self._files[index]
        with using_scratch():
            self._writers[index].close()
            file.seek(0)
            yield from (pa.Table.from_batches([batch]) for batch in ipc.open_stream(file))

    def read(self, index: int) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *self.scan(index)])

    def take(self, index: int) -> pa.Table:
        """Read a slice for the last time, and delete its file."""
        rows = self.read(index)
        self._files[index].close()
        return rows


def choose_by_row(rows: pa.Table, count: int) -> Longs:
    return _choose_by_hash(rows.drop_columns([name for name in (TIME, DIFF) if name in rows.schema.names]), count)


def choose_by_columns(names: Sequence[str]) -> ChooseSlices:
    """Rows with equal values in these columns share a slice."""
    return lambda rows, count: _choose_by_hash(rows.select([*names]), count)


def choose_by_time(lower: int, upper: int) -> ChooseSlices:
    """Equal ranges of [lower, upper), in order."""

    def place(rows: pa.Table, count: int) -> Longs:
        found: Longs = (rows[TIME].to_numpy() - lower) * count // (upper - lower)
        return found

    return place


def _choose_by_hash(columns: pa.Table, count: int) -> Longs:
    found: Longs = (hash_rows(columns).high >> np.uint64(64 - (count.bit_length() - 1))).astype(np.int64)
    return found
