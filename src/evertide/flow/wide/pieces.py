"""Pieces: stored rows of a collection, each of which one task reads.

    ShardPiece   a part of a shard, up to a time
    RowsPiece    rows that a task of this step wrote for a later job of it
    LocalPiece   few rows that the driver has
    RangePiece   the rows of sorted runs with the words of a range, added up

A `SelectedPiece` renames the columns of another piece.

A piece is sent to executors, so it has names and no rows. Reading yields tables with the collection's columns, named
by position, and `__diff`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import xxhash

from evertide.errors import BlobDamaged, StateInconsistent
from evertide.flow.state.block import RowBlock, concatenate_blocks, make_table
from evertide.flow.state.merge import merge
from evertide.flow.state.part_reader import CachedParts
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.state_part import PartEntry
from evertide.rows.changes import DIFF, DIFF_FIELD, check_column
from evertide.rows.columns import Longs
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.read import TimeWindow, cut_to_window
from evertide.store.blob import Blob

_CACHE_BYTES = 32 * 1024 * 1024
"""For the footers and row groups of the runs that a task reads."""
_GROUPS_AT_ONCE = 16


class Piece(Protocol):
    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def read(self, blob: Blob, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows with these columns, in order, and `__diff`."""
        ...


@dataclass(frozen=True, slots=True)
class ShardPiece:
    part: Part
    stored: pa.Schema
    """The shard's columns."""
    declared: pa.Schema
    """The columns with the types that the collection has."""
    schema: pa.Schema
    """The same, named by position."""
    window: TimeWindow
    path: str
    """For messages."""

    @property
    def rows(self) -> int:
        """The rows, each as often as it occurs."""
        return max(self.part.rows, self.part.count)

    @property
    def bytes(self) -> int:
        return self.part.bytes

    @property
    def has_retractions(self) -> bool:
        return self.part.retractions > 0

    def read(self, blob: Blob, columns: Sequence[str]) -> Iterator[pa.Table]:
        part = self.part
        places = [self.schema.get_field_index(column) for column in columns]
        names = [self.stored.field(at).name for at in places]
        data = blob.get(part.key) if part.key else part.inline
        decoded = decode_part(part, data, self.stored, self.path, columns=names, use_threads=False)
        found = cut_to_window(decoded, part, self.window)
        checked = [
            check_column(found.column(self.stored.field(at).name), self.declared.field(at), self.path) for at in places
        ]
        schema = pa.schema([*(self.schema.field(at) for at in places), DIFF_FIELD])
        yield pa.Table.from_arrays([*checked, found.column(DIFF)], schema=schema)


@dataclass(frozen=True, slots=True)
class RowsPiece:
    key: str
    rows: int
    bytes: int
    checksum: int

    def read(self, blob: Blob, columns: Sequence[str]) -> Iterator[pa.Table]:
        data = blob.get(self.key)
        found = xxhash.xxh3_64_intdigest(data)
        if found != self.checksum:
            why = "the checksum of rows between two jobs differs"
            raise BlobDamaged(path=blob.path(self.key), why=why, expected=str(self.checksum), found=str(found))
        with pa.ipc.open_stream(data) as stream:
            places = [stream.schema.get_field_index(column) for column in (*columns, DIFF)]
        # The reader decompresses the included fields only, and returns them in the order of the schema.
        with pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(included_fields=sorted(set(places)))) as stream:
            yield stream.read_all().select([*columns, DIFF])


@dataclass(frozen=True, slots=True)
class LocalPiece:
    """Few rows, which are sent with the task."""

    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.table.nbytes)

    def read(self, blob: Blob, columns: Sequence[str]) -> Iterator[pa.Table]:  # noqa: ARG002 - they are here
        yield self.table.select([*columns, DIFF])


@dataclass(frozen=True, slots=True)
class SelectedPiece:
    """Columns of another piece, under the names of `schema`."""

    piece: Piece
    columns: tuple[str, ...]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        return self.piece.rows

    @property
    def bytes(self) -> int:
        return self.piece.bytes

    def read(self, blob: Blob, columns: Sequence[str]) -> Iterator[pa.Table]:
        places = [self.schema.get_field_index(column) for column in columns]
        schema = pa.schema([*(self.schema.field(at) for at in places), DIFF_FIELD])
        inner = [self.columns[at] for at in places]
        for rows in self.piece.read(blob, list(dict.fromkeys(inner))):
            yield pa.Table.from_arrays([*(rows.column(name) for name in inner), rows.column(DIFF)], schema=schema)


@dataclass(frozen=True, slots=True)
class SortedRun:
    """A run of parts that a task wrote, with a sample of its words: one of `SAMPLE_STEP`, in order."""

    entries: tuple[PartEntry, ...]
    words: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.entries)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class WordRange:
    """Words from `low` to below `high`; None has no limit."""

    low: int | None
    high: int | None

    def cut(self, words: Longs) -> slice:
        """The positions of these words among ascending ones."""
        start = 0 if self.low is None else int(np.searchsorted(words, self.low))
        end = len(words) if self.high is None else int(np.searchsorted(words, self.high))
        return slice(start, end)

    def overlaps(self, least: int, greatest: int) -> bool:
        return (self.low is None or greatest >= self.low) and (self.high is None or least < self.high)


@dataclass(frozen=True, slots=True)
class RangePiece:
    runs: tuple[SortedRun, ...]
    schema: pa.Schema
    range: WordRange
    rows: int
    bytes: int

    def read(self, blob: Blob, columns: Sequence[str]) -> Iterator[pa.Table]:
        for block in merge_range(self.runs, self.schema, self.range, blob):
            if block.diffs.min() < 0:
                why = "a row was removed more often than it was added"
                raise StateInconsistent(where="content of a table", why=why)
            yield make_table([block], self.schema).select([*columns, DIFF])


def merge_range(runs: Sequence[SortedRun], schema: pa.Schema, of: WordRange, blob: Blob) -> Iterator[RowBlock]:
    """The sum of the runs' rows with these words, in blocks whose words ascend."""
    cached = CachedParts(blob, RowGroupCache(_CACHE_BYTES), schema)
    return merge([_CutRun(run, of) for run in runs], cached, "rows of a range")


def read_range(runs: Iterable[SortedRun], schema: pa.Schema, of: WordRange, blob: Blob) -> RowBlock | None:
    """The rows of all runs with these words, not added up; None if there are none."""
    cached = CachedParts(blob, RowGroupCache(_CACHE_BYTES), schema)
    found = [block for run in runs for block in _CutRun(run, of).read(cached)]
    return concatenate_blocks(found) if found else None


@dataclass(frozen=True, slots=True)
class _CutRun:
    """The part of a run with the words of a range."""

    run: SortedRun
    range: WordRange

    def read(self, cached_parts: CachedParts) -> Iterator[RowBlock]:
        for entry in self.run.entries:
            if self.range.overlaps(entry.least, entry.greatest):
                yield from self._read_part(entry, cached_parts)

    def _read_part(self, entry: PartEntry, cached_parts: CachedParts) -> Iterator[RowBlock]:
        index = cached_parts.open(entry).index
        first = 0 if self.range.low is None else int(np.searchsorted(index.greatest, self.range.low))
        end = len(index.least) if self.range.high is None else int(np.searchsorted(index.least, self.range.high))
        for start in range(first, end, _GROUPS_AT_ONCE):
            block = concatenate_blocks(cached_parts.read_blocks(entry, start, min(start + _GROUPS_AT_ONCE, end)))
            at = self.range.cut(block.words)
            if at.start < at.stop:
                yield block.slice(at.start, at.stop)


def cut_into_ranges(runs: Iterable[SortedRun], count: int) -> list[WordRange]:
    """Up to `count` ranges of words with about the same number of rows. A frequent word is never split."""
    samples = [np.array(run.words, np.int64) for run in runs]
    words = np.sort(np.concatenate(samples)) if samples else np.empty(0, np.int64)
    if len(words) == 0 or count < 2:
        return [WordRange(None, None)]
    cuts = np.unique(words[[len(words) * at // count for at in range(1, count)]]).tolist()
    return [WordRange(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]
