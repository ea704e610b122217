"""`Snapshots`: the snapshots of shapes, in chunks, as of the time when the shape began or a later one.

1. A thread creates the chunks of a snapshot once, one after the other; each is served as soon as it is complete.
   Creating them again results in the same bytes.
2. A snapshot of one small chunk stays in memory, any other in a temporary file. Beyond the limits, the least recently
   used snapshots are dropped.
3. Rows are read under a lease (`contents`) and rendered `_ROWS` at a time: memory holds the collection's columns in
   Arrow's form, never as JSON.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from evertide.errors import EvertideError, NotAllowedNow, Unexpected
from evertide.rows.changes import DIFF
from evertide.scratch import using_scratch
from evertide.shapes.log.row_messages import MessageWriter, RowTexts
from evertide.shapes.log.stretch import make_copy_key
from evertide.shapes.options import ShapeOptions

logger = logging.getLogger(__name__)

_ROWS = 4096
_BLOCK_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_THREADS = 4


def write_snapshot(
    writer: MessageWriter, content: pa.Table, *, has_key: bool, mark: int | None = None
) -> Iterator[bytes]:
    for start in range(0, content.num_rows, _ROWS):
        rows_slice = content.slice(start, _ROWS)
        rendered = RowTexts(rows_slice.drop_columns([DIFF]))
        rows = range(rows_slice.num_rows)
        counts = np.asarray(rows_slice.column(DIFF)).tolist()
        for key, value, count in zip(writer.keys(rendered, rows), writer.values(rendered, rows), counts, strict=True):
            for copy in range(1, 2 if has_key else count + 1):
                yield writer.write_snapshot_row(make_copy_key(key, copy), value, mark)


class SnapshotUsage:
    """The memory and disk space of all snapshots of a process, counted as they grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.memory_bytes = 0
        self.disk_bytes = 0

    def add(self, memory_bytes: int, disk_bytes: int) -> None:
        with self._lock:
            self.memory_bytes += memory_bytes
            self.disk_bytes += disk_bytes


class Chunks:
    """The chunks of one snapshot: JSON bodies without the enclosing brackets."""

    def __init__(self, usage: SnapshotUsage) -> None:
        self._usage = usage
        self._changed = threading.Condition()
        self._ends: list[int] = []
        self._small = b""
        self._file: int | None = None
        self._is_done = False
        self._error: EvertideError | None = None
        self.memory_bytes = 0
        self.disk_bytes = 0

    def make(self, messages: Iterator[bytes], chunk_bytes: int) -> None:
        try:
            held: list[bytes] = []
            size = 0
            for message in messages:
                held += (b"," if held else b"", message)
                size += len(message) + 1
                if size >= chunk_bytes:
                    if not self._add(b"".join(held), is_last=False):
                        return  # closed: the snapshot was dropped
                    held, size = [], 0
            self._add(b"".join(held), is_last=True)
        except EvertideError as error:
            self._fail(error)
        except BaseException as error:
            logger.exception("could not create the snapshot of a shape")  # the future's result is not read
            self._fail(Unexpected(where="the snapshot of a shape", why=f"{type(error).__name__}; the log has more"))
            raise

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def has(self, number: int) -> bool:
        """Whether there is a chunk `number`, counted from 0. Waits until that is known."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_done or len(self._ends) > number)
            self._check()
            return len(self._ends) > number

    def size(self, number: int) -> int:
        return self._ends[number] - (self._ends[number - 1] if number else 0)

    def read_blocks(self, number: int) -> Iterator[bytes]:
        """The body of an existing chunk, with its own descriptor: the snapshot may be closed while a client reads."""
        with self._changed:
            self._check()
            start, end = self._ends[number] - self.size(number), self._ends[number]
            file = None if self._file is None else _SharedFile(self._file)
            return _read_blocks(file, self._small, start, end)

    def close(self) -> None:
        with self._changed:
            file, self._file = self._file, None
            why = "the snapshot was dropped to free space, or the shape has ended; request it again"
            self._error = self._error or NotAllowedNow(where="the snapshot of a shape", why=why)
            self._is_done = True
            self._usage.add(-self.memory_bytes, -self.disk_bytes)
            self.memory_bytes = self.disk_bytes = 0
            self._changed.notify_all()
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def _add(self, chunk: bytes, *, is_last: bool) -> bool:
        with self._changed:
            if self._error is not None:
                return False
            before = self._ends[-1] if self._ends else 0
            is_over = is_last and not chunk and bool(self._ends)
            if is_last and not self._ends and len(chunk) <= _SMALL_BYTES:
                self._small, self.memory_bytes = chunk, len(chunk)
                self._usage.add(len(chunk), 0)
            elif not is_over:
                with using_scratch():
                    if self._file is None:
                        self._file = _open_anonymous()
                    _write(self._file, chunk, before)
                self.disk_bytes += len(chunk)
                self._usage.add(0, len(chunk))
            if not is_over:
                self._ends.append(before + len(chunk))
            self._is_done = is_last
            self._changed.notify_all()
            return True

    def _fail(self, error: EvertideError) -> None:
        with self._changed:
            self._error, self._is_done = error, True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


class Snapshots:
    def __init__(self, options: ShapeOptions) -> None:
        self._options = options
        self._usage = SnapshotUsage()
        self._lock = threading.Lock()
        self._chunks: dict[tuple[str, int], Chunks] = {}
        """By handle and time, the most recently used last."""
        self._times: dict[str, set[int]] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="evertide-snapshot")

    def get(self, handle: str, messages: Callable[[], Iterator[bytes]], chunk_bytes: int, time: int = 0) -> Chunks:
        """The chunks of a snapshot, which are being created if they were not kept. `messages` is called in a thread."""
        with self._lock:
            chunks = self._chunks.pop((handle, time), None)
            if chunks is None or chunks.has_failed:
                chunks = Chunks(self._usage)
                self._pool.submit(chunks.make, _call_lazily(messages), chunk_bytes)
            self._chunks[handle, time] = chunks
            self._times.setdefault(handle, set()).add(time)
            self._shrink()
        return chunks

    def forget(self, handle: str) -> None:
        with self._lock:
            forgotten = [self._chunks.pop((handle, time), None) for time in self._times.pop(handle, ())]
        for chunks in forgotten:
            if chunks is not None:
                chunks.close()

    def stop(self) -> None:
        with self._lock:
            for chunks in self._chunks.values():
                chunks.close()  # the thread that creates it notices, and stops
            self._chunks.clear()
            self._times.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _shrink(self) -> None:
        """Close the least recently used snapshots until the others fit the limits; never the newest."""
        if not any(self._over_limits()):
            return
        for key, chunks in [*self._chunks.items()][:-1]:
            in_memory, on_disk = self._over_limits()
            if (in_memory and chunks.memory_bytes) or (on_disk and chunks.disk_bytes):
                del self._chunks[key]
                self._times[key[0]].discard(key[1])
                chunks.close()

    def _over_limits(self) -> tuple[bool, bool]:
        usage, options = self._usage, self._options
        return usage.memory_bytes > options.share_bytes, usage.disk_bytes > options.disk_bytes


class _SharedFile:
    """A duplicate of a file descriptor, closed with the object, even if it was never read."""

    def __init__(self, file: int) -> None:
        self.file = os.dup(file)

    def __del__(self) -> None:
        os.close(self.file)


def _read_blocks(shared: _SharedFile | None, small: bytes, start: int, end: int) -> Iterator[bytes]:
    yield b"["
    if shared is None:
        yield small[start:end]
    else:
        while start < end:
            block = os.pread(shared.file, min(_BLOCK_BYTES, end - start), start)
            start += len(block)
            yield block
    yield b"]"


def _call_lazily(messages: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Call `messages` only when the first message is taken, in the thread that creates the chunks."""
    yield from messages()


def _open_anonymous() -> int:
    """Open a temporary file without a name, which disappears with the process."""
    file, path = tempfile.mkstemp(prefix="evertide-shape-")
    with suppress(OSError):  # then only the name stays behind
        Path(path).unlink()
    return file


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
