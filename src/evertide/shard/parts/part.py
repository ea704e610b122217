"""Parts: the immutable files of a shard's changes, and the description of each in the shard's state.

Stored as a blob `parts/<shard>/<name>.parquet`, or inside the shard's state if at most `Settings.inline_bytes_max` long
(`Part.inline`). Version 1, in the metadata of the file's schema as `evertide.format`. An append or a compaction writes
a part once; garbage collection deletes it when no state names it.

Layout: the shard's columns, then `__time` and `__diff`.

    blob      Parquet, zstd, row groups of `Settings.row_group_rows`, with the Arrow schema
    inline    an Arrow IPC stream of one batch, uncompressed, or compressed with lz4 or zstd

Types that Parquet lacks or would round are stored as integers or bytes of the same bits (`find_stored_type`),
fixed-size lists as lists, extension types as their storage type. Reading returns exactly the shard's types.

Invariants, and what they prevent:

1. `bytes` and `checksum` (XXH3-128) are those of the encoded bytes. Otherwise damage would be decoded into wrong rows.
2. `rows`, `count` and `digest` are those of its changes. Otherwise compaction could lose rows unnoticed.
3. All times are in [time_min, time_max], all values in `ranges`. Otherwise readers would skip rows. An inline part has
   no ranges, because they would cost more than its rows.
4. A part never changes. A part with `slice_count` n has all rows of its batch whose hash is in slice `slice_index` of
   n, a power of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from evertide.errors import BlobDamaged, UnsupportedFormat
from evertide.rows.changes import DIFF, TIME, make_changes_schema
from evertide.rows.columns import Longs, to_array
from evertide.rows.conform import find_stored_type, reinterpret
from evertide.rows.digest import RowHashes, find_hashes, hash_rows, sum_hashes, to_hex
from evertide.settings import Settings
from evertide.shard.parts.statistics import Predicate, Range, compute_range, range_may_match

__all__ = ["FORMAT_VERSION", "Part", "Predicate", "Range", "decode_part", "encode_parts", "may_match", "verify_rows"]

FORMAT_VERSION = 1

_FORMAT_KEY = b"evertide.format"
_METADATA = {_FORMAT_KEY: str(FORMAT_VERSION).encode()}
_PARQUET_MAGIC = b"PAR1"

_RAW_BYTES_MAX = 2048
"""Below this size, compression costs time and saves little."""

_RATIO_MAX = 8
"""A batch larger than the limit times this ratio is not tried inline."""

_LZ4_RATIO = 2
"""Above this ratio only zstd is tried."""

# Threads cost more than they gain on batches this small.
_RAW = pa.ipc.IpcWriteOptions(use_threads=False)
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)


Encoded: TypeAlias = bytes


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a part in a shard's state, by which a reader verifies the part."""

    rows: int
    bytes: int
    checksum: str
    digest: str
    count: int
    """The sum of all diffs: the number of rows that the part adds."""
    retractions: int
    """The number of rows with a negative diff."""
    time_min: int
    time_max: int
    ranges: dict[str, Range]
    key: str = ""
    """The key of the blob; empty if the part is inline."""
    inline: Encoded = b""
    slice_index: int = 0
    slice_count: int = 1


def encode_parts(table: pa.Table, *, settings: Settings) -> list[tuple[Part, bytes]]:
    """Encode checked changes as parts. The bytes are to be stored as a blob, unless `Part.inline` has them."""
    encoded = []
    hashes = find_hashes(table) or hash_rows(table.drop_columns([TIME, DIFF]))
    for start in range(0, table.num_rows, settings.part_rows_max):
        rows = table.slice(start, settings.part_rows_max)
        stored = _to_stored(rows)
        data = _encode_inline(stored, settings.inline_bytes_max) if table.num_rows == rows.num_rows else None
        is_inline = data is not None
        data = data if data is not None else _encode_parquet(stored, settings.row_group_rows)
        own = RowHashes(*(lane[start : start + rows.num_rows] for lane in hashes))
        encoded.append((_describe(rows, own, data, inline=data if is_inline else b""), data))
    return encoded


def decode_part(
    part: Part,
    data: bytes,
    schema: pa.Schema,
    path: str,
    *,
    columns: Iterable[str] | None = None,
    use_threads: bool = True,
) -> pa.Table:
    """Return the changes of a part, of all columns or of those named (in the shard's order), with `__time` and
    `__diff`.

    Length and checksum are verified before anything is decoded. `path` is for errors.
    """
    _check_bytes(part, data, path)
    wanted = make_changes_schema(schema)
    try:
        if data[:4] == _PARQUET_MAGIC:
            table = _read_parquet(data, wanted, path, _select_names(wanted, columns), use_threads=use_threads)
        else:
            table = _read_inline(data, wanted, path, _select_names(wanted, columns))
    except MemoryError:  # an exception of Arrow, too, and no damage
        raise
    except (pa.ArrowException, OSError) as error:  # OSError is what pyarrow raises for some broken files
        raise BlobDamaged(path=path, why=f"its checksum matches, but it cannot be read: {error}") from error
    if table.num_rows != part.rows:
        raise BlobDamaged(path=path, why="the row count differs", expected=str(part.rows), found=str(table.num_rows))
    return table


def verify_rows(part: Part, table: pa.Table, path: str) -> None:
    """Check that a decoded part (all columns) has the recorded counts, times and digest."""
    found = _describe(table, hash_rows(table.drop_columns([TIME, DIFF])), b"", inline=b"")
    for name in ("rows", "count", "retractions", "time_min", "time_max", "digest"):
        expected_value, found_value = getattr(part, name), getattr(found, name)
        if expected_value != found_value:
            raise BlobDamaged(
                path=path, why=f"the {name} of its rows differs", expected=str(expected_value), found=str(found_value)
            )


def may_match(part: Part, schema: pa.Schema, predicates: Sequence[Predicate]) -> bool:
    """Return False only if the statistics prove that no row satisfies all predicates."""
    for predicate in predicates:
        found = part.ranges.get(predicate.column)
        at = schema.get_field_index(predicate.column)
        if found is not None and at >= 0 and not range_may_match(found, part.rows, schema.field(at).type, predicate):
            return False
    return True


def _describe(table: pa.Table, hashes: RowHashes, data: bytes, *, inline: bytes) -> Part:
    columns = table.drop_columns([TIME, DIFF])
    times, diffs = (np.asarray(to_array(table.column(name))) for name in (TIME, DIFF))
    return Part(
        rows=table.num_rows,
        bytes=len(data),
        checksum=xxhash.xxh3_128_hexdigest(data),
        digest=to_hex(sum_hashes(hashes, diffs)),
        count=_exact_sum(diffs),
        retractions=int((diffs < 0).sum()),
        time_min=int(times.min()) if len(times) else 0,
        time_max=int(times.max()) if len(times) else 0,
        ranges={} if inline else dict(_compute_ranges(columns)),
        inline=inline,
    )


def _exact_sum(diffs: Longs) -> int:
    """Sum in halves: the sum of many large diffs may exceed 64 bits."""
    return (int((diffs >> 32).sum()) << 32) + int((diffs & 0xFFFF_FFFF).sum())


def _compute_ranges(columns: pa.Table) -> Iterator[tuple[str, Range]]:
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        found = compute_range(to_array(column))
        if found is not None:
            yield name, found


def _to_stored(table: pa.Table) -> pa.Table:
    """Convert rows to types that the files store exactly, with the format version in the metadata."""
    schema = _make_file_schema(table.schema)
    arrays = [_retype(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.with_metadata(_METADATA))


@lru_cache(maxsize=1024)
def _make_file_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a table of changes is stored with; computed once per shard."""
    return _make_stored_schema(make_changes_schema(pa.schema([*schema][:-2])))


@lru_cache(maxsize=1024)
def _make_stored_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, find_stored_type(field.type), field.nullable) for field in schema])


def _retype(column: Any, kind: Any) -> Any:
    if column.type.equals(kind, check_metadata=True):
        return column
    return pa.chunked_array([reinterpret(chunk, kind) for chunk in column.chunks], kind)


def _encode_inline(stored: pa.Table, bytes_max: int) -> bytes | None:
    """Return the encoded stream if it is short enough, with the cheapest compression that achieves it."""
    raw_bytes = stored.nbytes
    if raw_bytes > bytes_max * _RATIO_MAX:
        return None
    for options in _choose_compressions(raw_bytes, bytes_max):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, stored.schema, options=options) as writer:
            for batch in stored.combine_chunks().to_batches():
                writer.write_batch(batch)
        data = sink.getvalue()
        if data.size <= bytes_max:
            return bytes(data)
    return None


def _choose_compressions(raw_bytes: int, bytes_max: int) -> list[Any]:
    if raw_bytes <= _RAW_BYTES_MAX:
        return [_RAW, _ZSTD]
    return [_LZ4, _ZSTD] if raw_bytes <= bytes_max * _LZ4_RATIO else [_ZSTD]


def _encode_parquet(stored: pa.Table, row_group_rows: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(stored, sink, row_group_size=row_group_rows, compression="zstd", compression_level=1)
    return bytes(sink.getvalue())


def _check_bytes(part: Part, data: bytes, path: str) -> None:
    if len(data) != part.bytes:
        raise BlobDamaged(path=path, why="the length in bytes differs", expected=str(part.bytes), found=str(len(data)))
    found = xxhash.xxh3_128_hexdigest(data)
    if found != part.checksum:
        raise BlobDamaged(path=path, why="the checksum differs", expected=part.checksum, found=found)


def _select_names(schema: pa.Schema, columns: Iterable[str] | None) -> list[str] | None:
    if columns is None:
        return None
    requested = {*columns, TIME, DIFF}
    return [name for name in schema.names if name in requested]


def _read_parquet(data: bytes, schema: pa.Schema, path: str, names: list[str] | None, *, use_threads: bool) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(data))
    _check_schema(file.schema_arrow, file.metadata.metadata, schema, path)
    if use_threads and file.num_row_groups > 1:
        # Only this reader decodes row groups side by side; for a single one it costs more than it gains.
        table = pq.read_table(pa.BufferReader(data), columns=names)
    else:
        table = file.read(columns=names, use_threads=use_threads)
    return _to_declared(table, schema, names)


def _read_inline(data: bytes, schema: pa.Schema, path: str, names: list[str] | None) -> pa.Table:
    with pa.ipc.open_stream(data, options=_READ) as reader:
        _check_schema(reader.schema, reader.schema.metadata, schema, path)
        table = reader.read_all()
    return _to_declared(table if names is None else table.select(names), schema, names)


def _check_schema(file_schema: pa.Schema, metadata: dict[bytes, bytes] | None, wanted: pa.Schema, path: str) -> None:
    version = (metadata or {}).get(_FORMAT_KEY, b"")
    if version != _METADATA[_FORMAT_KEY]:
        number = int(version) if version.isdigit() else 0
        raise UnsupportedFormat(path=path, found=number, supported=FORMAT_VERSION)
    stored = _make_stored_schema(wanted)
    if not _make_stored_schema(file_schema).equals(stored):  # older files have NOT NULL inside structs, too
        expected, given = (str(schema.remove_metadata()) for schema in (stored, file_schema))
        raise BlobDamaged(path=path, why="the columns differ", expected=expected, found=given)


def _to_declared(table: pa.Table, wanted: pa.Schema, names: list[str] | None) -> pa.Table:
    schema = wanted if names is None else pa.schema([wanted.field(name) for name in names])
    arrays = [_retype(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
