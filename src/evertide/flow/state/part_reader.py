"""`StatePartReader`: an open state part, whose row groups are read, verified and decoded one range at a time.

1. Opening requests the footer and one byte beyond the expected end of the file. A file that is too short or too long,
   or whose footer is damaged, raises `BlobDamaged` before any row is used; a missing file raises `BlobMissing`.
2. Adjacent row groups are read as one range, and each is verified against the index before it is decoded.

Threads may share a reader; a lock serializes them.
"""

from __future__ import annotations

import io
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from evertide.errors import BlobDamaged, UnsupportedFormat
from evertide.flow.state.block import RowBlock
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.state_part import FIRST_VERSION, FORMAT_VERSION, KEY, PartEntry, make_state_schema
from evertide.rows.changes import DIFF
from evertide.rows.columns import to_array
from evertide.rows.conform import reinterpret
from evertide.store.blob import Blob

_FILE = -1
_OPEN_RATIO = 12
"""Memory of an open file per byte of its footer, as measured."""


class _FetchedRange(io.RawIOBase):
    """The file for pyarrow, with only the range that was read last."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0
        self._offset = 0
        self._fetched = b""

    def show(self, offset: int, fetched: bytes) -> None:
        """Let `read` return bytes of this range only."""
        self._offset, self._fetched = offset, fetched

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        start = self._at - self._offset
        end = len(self._fetched) if size < 0 else start + size
        if start < 0 or end > len(self._fetched):
            raise OSError(f"{size} bytes at {self._at} are not in the row groups that were read")
        self._at += end - start
        return self._fetched[start:end]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class StatePartReader:
    def __init__(self, blob: Blob, entry: PartEntry, schema: pa.Schema) -> None:
        self.entry = entry
        self._blob = blob
        self._path = blob.path(entry.key)
        self._schema = schema
        stored = make_state_schema(schema)
        self._retyped = {f.name for f in schema if not f.type.equals(stored.field(f.name).type, check_metadata=True)}
        self._lock = threading.Lock()
        self._window = _FetchedRange(entry.bytes)
        try:
            metadata = pq.read_metadata(pa.BufferReader(self._read_footer()))
            self._file = pq.ParquetFile(self._window, metadata=metadata, pre_buffer=False)
            self._check_schema(schema)
            self.index = entry.read_index(metadata)
            if len(self.index.least) != entry.row_groups:
                raise self._make_damage("row groups in its index", entry.row_groups, len(self.index.least))
        except MemoryError:  # an exception of Arrow, too, and no damage
            raise
        except (pa.ArrowException, OSError) as error:  # OSError is what pyarrow raises for some broken files
            raise BlobDamaged(path=self._path, why=f"the footer cannot be read: {error}") from error
        self.bytes = entry.footer_bytes * _OPEN_RATIO

    def read(self, first: int, last: int) -> list[RowBlock]:
        """The row groups in [first, last)."""
        with self._lock:
            self._fetch(first, last)
            try:
                tables = [self._file.reader.read_row_group(at, use_threads=False) for at in range(first, last)]
            except MemoryError:  # an exception of Arrow, too, and no damage
                raise
            except (pa.ArrowException, OSError) as error:
                raise BlobDamaged(path=self._path, why=f"row groups cannot be read: {error}") from error
            finally:
                self._window.show(0, b"")
        return [self._make_block(table) for table in tables]

    def _fetch(self, first: int, last: int) -> None:
        _, _, offsets, lengths, checksums = self.index
        offset, end = int(offsets[first]), int(offsets[last - 1] + lengths[last - 1])
        data = self._blob.get_range(self.entry.key, offset, end - offset)
        if len(data) != end - offset:
            raise self._make_damage("bytes of row groups", end - offset, len(data))
        view = memoryview(data)
        for number in range(first, last):
            start = int(offsets[number]) - offset
            found = xxhash.xxh3_64_intdigest(view[start : start + int(lengths[number])])
            expected = int(checksums[number]) % (1 << 64)
            if found != expected:
                raise self._make_damage(f"checksum of row group {number}", f"{expected:016x}", f"{found:016x}")
        self._window.show(offset, data)

    def _read_footer(self) -> bytes:
        entry = self.entry
        footer = self._blob.get_range(entry.key, entry.bytes - entry.footer_bytes, entry.footer_bytes + 1)
        if len(footer) != entry.footer_bytes:
            found = f"{entry.bytes - entry.footer_bytes + len(footer)} or another"
            raise self._make_damage("the length in bytes differs", entry.bytes, found)
        found = xxhash.xxh3_64_hexdigest(footer)
        if found != entry.footer_checksum:
            raise self._make_damage("checksum of its footer", entry.footer_checksum, found)
        return footer

    def _check_schema(self, schema: pa.Schema) -> None:
        found, expected = self._file.schema_arrow, make_state_schema(schema)
        version = (found.metadata or {}).get(b"evertide.state", b"")
        number = int(version) if version.isdigit() else 0
        if not FIRST_VERSION <= number <= FORMAT_VERSION:
            raise UnsupportedFormat(path=self._path, found=number, supported=FORMAT_VERSION)
        if not make_state_schema(pa.schema([*found][:-2])).equals(
            expected
        ):  # older files have NOT NULL inside structs as well
            raise self._make_damage("columns", expected.remove_metadata(), found.remove_metadata())

    def _make_damage(self, why: str, expected: object, found: object) -> BlobDamaged:
        return BlobDamaged(path=self._path, why=why, expected=str(expected), found=str(found))

    def _make_block(self, table: pa.Table) -> RowBlock:
        columns = {name: to_array(table.column(name)) for name in table.column_names}
        diffs, words = np.asarray(columns.pop(DIFF)), np.asarray(columns.pop(KEY))
        for name in self._retyped:
            columns[name] = reinterpret(columns[name], self._schema.field(name).type)
        return RowBlock(words, diffs, columns)


class CachedParts:
    """The parts of one arrangement, read through the shared cache."""

    def __init__(self, blob: Blob, cache: RowGroupCache, schema: pa.Schema) -> None:
        self.blob = blob
        self._cache = cache
        self._schema = schema

    def open(self, entry: PartEntry) -> StatePartReader:
        reader: StatePartReader | None = self._cache.get(entry.key, _FILE)
        if reader is None:
            reader = StatePartReader(self.blob, entry, self._schema)
            self._cache.put(entry.key, _FILE, reader, reader.bytes)
        return reader

    def read_block(self, entry: PartEntry, number: int) -> RowBlock:
        """One row group."""
        block: RowBlock | None = self._cache.get(entry.key, number)
        if block is None:
            [block] = self.open(entry).read(number, number + 1)
            self._cache.put(entry.key, number, block, block.bytes)
        return block

    def read_blocks(self, entry: PartEntry, first: int, last: int) -> list[RowBlock]:
        """Row groups in [first, last), without the cache, for scans."""
        return self.open(entry).read(first, last)

    def drop(self, entry: PartEntry) -> None:
        self._cache.drop(entry.key, entry.row_groups)
