"""The files sink: a log of changes, one Parquet file per transaction.

    <path>/_evertide.json                 the sink that writes here
    <path>/00000000000000000007.parquet   the changes of transaction 7

A file has the collection's columns, `__time` (the transaction) and `__diff` (how many copies of the row were added, or
removed if negative). File names sort in the order of transactions, so a reader that reads the files in order and
remembers the last one sees each transaction once. A file is complete or does not exist, and never changes
(`evertide.store.blob`). A reader may delete the files that it has read.

Options: `path`, a directory, or `s3://bucket/prefix` with credentials in the environment.
"""

from __future__ import annotations

import io
import mmap
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evertide.errors import BlobMissing, EvertideError, SinkFailed
from evertide.rows.changes import DIFF, TIME
from evertide.scratch import using_scratch
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration
from evertide.store.blob import Blob
from evertide.store.blobs.local import LocalBlob
from evertide.store.blobs.s3 import S3Blob

_MARK = "_evertide.json"
_FILE = re.compile(r"(?P<number>[0-9]{20})\.parquet")


class _Mark(msgspec.Struct, frozen=True):
    sink: str
    collection: str
    token: str


def prepare_files(declaration: SinkDeclaration) -> Prepared:
    options = declaration.read_options(Secrets(declaration.base))
    place = options.require("path", "./changes")
    options.check_unknown()
    target = _FilesTarget(declaration, place)
    return Prepared(target.open, target.probe)


class _FilesTarget:
    def __init__(self, declaration: SinkDeclaration, place: str) -> None:
        self._declaration = declaration
        self._place = place if place.startswith("s3://") else str(declaration.base / place)

    def probe(self) -> None:
        with self._convert_errors():
            blob = self._blob()
            if self._exists() and (_read_mark(blob) is not None or _list_numbers(blob)):
                raise self._failure("the path has files of another sink; set another path")

    def open(self, token: str) -> FilesSink:
        declaration = self._declaration
        with self._convert_errors():
            blob = self._blob()
            if isinstance(blob, LocalBlob) and not self._exists():
                blob.make_root()
            found = _read_mark(blob)
            if found is None and not _list_numbers(blob):
                blob.put(_MARK, msgspec.json.encode(_Mark(declaration.name, declaration.collection, token)))
            elif found is None or found.token != token:
                raise self._failure("the path has files of another sink; set another path")
            return FilesSink(declaration.name, blob, self._place, is_new=found is None)

    def _blob(self) -> Blob:
        if self._place.startswith("s3://"):
            parts = urlsplit(self._place)
            return S3Blob(parts.netloc, parts.path)
        root = Path(self._place)
        if not root.parent.is_dir():
            raise self._failure("the parent directory does not exist; create it")
        return LocalBlob(root)

    def _exists(self) -> bool:
        return self._place.startswith("s3://") or Path(self._place).exists()

    def _failure(self, why: str) -> SinkFailed:
        return SinkFailed(sink=self._declaration.name, where=self._place, why=why)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        with _convert_storage_errors(self._declaration.name, self._place):
            yield


class FilesSink:
    def __init__(self, name: str, blob: Blob, place: str, *, is_new: bool) -> None:
        self.name = name
        self.keeps_number = is_new
        """`is_new`: this process created the log, so no reader has deleted files."""
        self._blob = blob
        self._place = place
        with _convert_storage_errors(name, place):
            self._last = max(_list_numbers(blob), default=None)

    def last(self) -> int | None:
        return self._last

    def write(self, time: int, changes: Changes) -> None:
        if self._last is not None and time <= self._last:
            return
        with _convert_storage_errors(self.name, self._place):
            if changes.whole is not None:
                buffer = io.BytesIO()
                _encode(changes, time, buffer)
                self._put(time, buffer.getvalue())
            else:
                self._put_by_file(time, changes)
        self._last = time

    def _put_by_file(self, time: int, changes: Changes) -> None:
        """A large transaction is encoded into a temporary file, which is then mapped rather than read."""
        with using_scratch(), tempfile.TemporaryFile() as file:
            _encode(changes, time, file)
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                self._put(time, cast("bytes", data))  # these blobs only write and compare the data

    def _put(self, time: int, data: bytes) -> None:
        self._blob.put(f"{time:020d}.parquet", data)

    def close(self) -> None:
        pass


def _encode(changes: Changes, time: int, file: BinaryIO) -> None:
    tables = (_with_time(piece, time) for piece in changes)
    first = next(tables)
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _with_time(changes: pa.Table, time: int) -> pa.Table:
    times = pa.array(np.full(changes.num_rows, time, np.int64))
    return changes.add_column(changes.schema.get_field_index(DIFF), pa.field(TIME, pa.int64(), nullable=False), times)


def _list_numbers(blob: Blob) -> list[int]:
    found = (_FILE.fullmatch(entry.key) for entry in blob.list(""))
    return [int(each["number"]) for each in found if each is not None]


def _read_mark(blob: Blob) -> _Mark | None:
    try:
        return msgspec.json.decode(blob.get(_MARK), type=_Mark)
    except BlobMissing:
        return None


@contextmanager
def _convert_storage_errors(sink: str, place: str) -> Iterator[None]:
    try:
        yield
    except SinkFailed:
        raise
    except EvertideError as error:
        raise SinkFailed(sink=sink, where=place, why=error.message) from error
    except msgspec.MsgspecError as error:
        raise SinkFailed(sink=sink, where=place, why=f"{_MARK} cannot be read: {error}") from error
