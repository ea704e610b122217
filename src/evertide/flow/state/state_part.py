"""State parts: the immutable files that hold an arrangement's rows, sorted by the word of their key.

A part is the blob `state/<arrangement>/<name>.parquet`, with the format version 1 as `evertide.state` in the metadata
of the file's schema. The process that maintains the arrangement writes it once, and deletes it when no checkpoint
names it.

Layout: Parquet, lz4, small row groups, no statistics. The columns are the collection's, in types that Parquet stores
exactly, then `__diff`, and `__key`, the row's word. Words, diffs and integers are delta encoded. Of the measured
layouts (4096 rows, 4 columns), this one decodes fastest, 60 us per row group against 260 us with zstd, and takes half
the bytes of lz4 without delta encoding. Dictionaries gain nothing at this size.

Invariants:

1. Words ascend, and equal rows occur once: a look-up searches, and does not sum within one part.
2. The index has, per row group, the least and greatest word, the offset and length of its bytes, and their XXH3-64. A
   reader verifies a row group each time it fetches it, before decoding, without reading the rest of the file.
3. `bytes` and `checksum` (XXH3-128) cover the whole file; `footer_checksum` (XXH3-64) covers everything after the last
   row group. Opening a part verifies its length and footer.
4. A part never changes, and its key is never reused, since the cache has decoded row groups under the key.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from evertide.errors import BlobDamaged, InvalidInput, Unexpected
from evertide.flow.state.block import RowBlock
from evertide.rows.changes import DIFF
from evertide.rows.columns import Longs
from evertide.rows.conform import explain_refusal, find_stored_type, reinterpret
from evertide.store.blob import Blob

FORMAT_VERSION = 1

KEY = "__key"

_FORMAT_KEY = b"evertide.state"
_METADATA = {_FORMAT_KEY: str(FORMAT_VERSION).encode()}
_DELTA_TYPES = frozenset(
    getattr(pa.lib, f"Type_{name}")
    for name in ("INT32", "INT64", "UINT32", "UINT64", "DATE32", "TIME32", "TIME64", "TIMESTAMP", "DURATION")
)
_LONG = pa.int64()
_INDEX_COLUMNS = 5


Packed: TypeAlias = bytes


class PartEntry(msgspec.Struct, frozen=True):
    """All that a reader must know of a part. Manifests contain it."""

    key: str
    rows: int
    bytes: int
    checksum: str
    footer_bytes: int
    footer_checksum: str
    index: Packed
    """Per row group five little-endian int64: least word, greatest word, offset, length, checksum."""

    @property
    def row_groups(self) -> int:
        return len(self.index) // (8 * _INDEX_COLUMNS)

    def read_index(self) -> tuple[Longs, Longs, Longs, Longs, Longs]:
        """The columns of the index."""
        table = np.frombuffer(self.index, "<i8").reshape(-1, _INDEX_COLUMNS)
        return tuple(np.ascontiguousarray(column) for column in table.T)  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def make_state_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of the files of an arrangement with these columns."""
    fields = [pa.field(field.name, find_stored_type(field.type), field.nullable) for field in schema]
    fields += [pa.field(DIFF, _LONG, nullable=False), pa.field(KEY, _LONG, nullable=False)]
    return pa.schema(fields, metadata=_METADATA)


@lru_cache(maxsize=1024)
def check_schema(schema: pa.Schema, where: str) -> None:
    for field in schema:
        if field.name in (DIFF, KEY):
            raise Unexpected(where=f"{where}, column {field.name!r}", why="the name is reserved")
        if schema.names.count(field.name) > 1:
            raise Unexpected(where=f"{where}, column {field.name!r}", why="the name occurs twice")
        if why := explain_refusal(field.type):
            raise InvalidInput(where=f"{where}, column {field.name!r}", why=why)


class PartWriter:
    """Writes one part. Rows are added in the order of their words, and encoded at once to save memory."""

    def __init__(self, schema: pa.Schema, row_group_rows: int) -> None:
        stored = make_state_schema(schema)
        self._schema = stored
        self._row_group_rows = row_group_rows
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            stored,
            compression="lz4",
            use_dictionary=False,
            write_statistics=False,
            column_encoding={f.name: "DELTA_BINARY_PACKED" for f in stored if f.type.id in _DELTA_TYPES} or None,
        )
        self._words: list[Longs] = []
        self.rows = 0

    def add(self, block: RowBlock) -> None:
        """Add rows. All blocks but the last should fill whole row groups; otherwise a smaller row group is written."""
        arrays = [reinterpret(block.columns[f.name], f.type) for f in [*self._schema][:-2]]
        arrays += [pa.array(block.diffs), pa.array(block.words)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), self._row_group_rows)
        self._words += [
            block.words[start : start + self._row_group_rows] for start in range(0, block.rows, self._row_group_rows)
        ]
        self.rows += block.rows

    def close(self, key: str) -> tuple[PartEntry, bytes]:
        """Finish the part, which the caller puts under this key."""
        self._writer.close()
        data = bytes(self._sink.getvalue())
        footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        metadata = pq.read_metadata(pa.BufferReader(data))
        starts = [metadata.row_group(i).column(0).data_page_offset for i in range(metadata.num_row_groups)]
        index = np.empty((len(starts), _INDEX_COLUMNS), "<i8")
        for i, (start, end) in enumerate(zip(starts, [*starts[1:], footer_at], strict=True)):
            checksum = xxhash.xxh3_64_intdigest(data[start:end])
            words = self._words[i]
            index[i] = words[0], words[-1], start, end - start, checksum - (checksum >> 63 << 64)
        entry = PartEntry(
            key=key,
            rows=self.rows,
            bytes=len(data),
            checksum=xxhash.xxh3_128_hexdigest(data),
            footer_bytes=len(data) - footer_at,
            footer_checksum=xxhash.xxh3_64_hexdigest(data[footer_at:]),
            index=index.tobytes(),
        )
        return entry, data


def verify_part(blob: Blob, entry: PartEntry) -> None:
    """Read a whole part, and raise `BlobMissing` or `BlobDamaged` if its length or checksum differs from the entry."""
    data = blob.get(entry.key)
    path = blob.path(entry.key)
    if len(data) != entry.bytes:
        raise BlobDamaged(path=path, why="the length in bytes differs", expected=str(entry.bytes), found=str(len(data)))
    found = xxhash.xxh3_128_hexdigest(data)
    if found != entry.checksum:
        raise BlobDamaged(path=path, why="the checksum differs", expected=entry.checksum, found=found)
