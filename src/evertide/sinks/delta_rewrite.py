"""Removes and adds any number of rows of a Delta table in one commit, in memory for a slice of the removed rows.

The merge of the Delta package holds all removed rows in memory. `Rewrite` replaces the files that hold them instead:

1. Removed rows are distributed over slices on disk, by the hash of the columns that identify a row (`remove`).
2. The files that may hold one of them by their statistics are read in batches. Rows whose hash is in a filter of fixed
   size join the slices, each with its number: its position in all rows that are read.
3. Slice by slice, the removed rows are matched with rows of the table, exactly, and those are marked: n of m copies.
   A removed row that the table lacks is an error. Nothing is in the table's directory or its log until here.
4. Files that hold a marked row are read again. Their other rows and the added rows become new files, which the Delta
   package writes to a temporary directory, with their statistics. Other files are left alone.
5. The new files are copied into the table and synced, and then one commit adds them and removes the old ones. It fails
   if any other commit came after the version that was read: the Delta package itself would accept the removal of a
   file that a compaction has replaced, and its rows would be in the table twice.
6. After a crash, new files may be left that are in no commit; VACUUM deletes them. If they cannot be copied, those that
   were copied are deleted; after a commit was tried, none is, because it may have succeeded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from evertide.errors import ScratchUnavailable
from evertide.rows.changes import DIFF, DIFF_FIELD, TIME, consolidate_delta, match_removed
from evertide.rows.columns import Bools, Longs, Words
from evertide.rows.digest import hash_rows
from evertide.rows.slices import Slices, choose_by_columns, choose_by_time
from evertide.scratch import scratch_directory, using_scratch
from evertide.sinks.delta_files import TableFiles, make_ranges, open_filesystem

_SLICES = 64
"""Of removed rows. With those of the transaction itself, they stay within the open files of a process."""
_MARKED_SLICES = 32
_FILTER_BITS = 1 << 27
_MATCHED_ROWS = 65_536
"""At least so many rows of the table are matched at once."""
_MARKED = pa.schema([pa.field(TIME, pa.int64(), nullable=False)])


class _Added(msgspec.Struct, rename="camel"):
    path: str
    size: int
    modification_time: int
    stats: str


class _Action(msgspec.Struct):
    add: _Added | None = None


class Rewrite:
    """Use it as a context manager: `remove` all removed rows, spool what `read_kept` yields with the added rows, and
    `commit` them."""

    def __init__(
        self, table: DeltaTable, schema: pa.Schema, key: tuple[str, ...], fail: Callable[[str], Exception]
    ) -> None:
        """`fail` makes the error for a table that another writer changed."""
        self._table = table
        self._schema = schema
        self._fail = fail
        self._match = [*(key or schema.names)]
        self._ranges = make_ranges(schema, self._match)
        self._filter = _HashFilter()
        stored = pa.schema([*(schema.field(name) for name in self._match), DIFF_FIELD])
        self._none = stored.empty_table()
        self._old: list[RemoveAction] = []
        self._stack = ExitStack()
        self._slices = self._stack.enter_context(Slices(stored, _SLICES, choose_by_columns(self._match)))
        """Rows with the negative number of copies to remove, then rows of the table with their numbers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def remove(self, removed: pa.Table) -> None:
        """Rows with a negative `__diff`. With a key, each key once."""
        rows = removed.select([*self._match, DIFF])
        for each in self._ranges:
            each.add(rows)
        self._filter.add(hash_rows(rows.drop_columns([DIFF])).high)
        self._slices.add(rows)

    def read_kept(self, now_ms: int) -> Iterator[pa.RecordBatch]:
        """The rows of the files to remove that are not removed."""
        if not any(self._slices.rows):
            return
        files = TableFiles(self._table, self._schema, self._ranges)
        self._find_candidates(files)
        with _Marks(files.starts) as marks:
            if lacking := self._mark(marks):
                raise self._fail(f"{lacking} rows to be removed are not in the table: another writer changed it")
            touched = [index for index, count in enumerate(marks.counts) if count]
            self._old = [files.make_remove(index, now_ms) for index in touched]
            for index in touched:
                for number, rows in files.read(index, self._schema.names):
                    unmarked = pa.array(marks.find_unmarked(number, rows.num_rows))
                    yield from rows.filter(unmarked).to_batches()

    def commit(
        self, rows: pa.RecordBatchReader, properties: CommitProperties, sync: Callable[[list[str]], None]
    ) -> None:
        """`rows` are those that `read_kept` yields, and the added ones. `sync` gets the names of the new files. The
        Delta package must not call itself, so `rows` do not read the table."""
        with using_scratch():
            scratch = tempfile.TemporaryDirectory(prefix="evertide-", ignore_cleanup_errors=True)
        with scratch as place:
            new = self._write_files(Path(place), rows)
            self._copy(Path(place), [each.path for each in new], sync)
        actions: list[AddAction | RemoveAction] = [*self._old, *map(_make_add, new)]
        version = self._table.version()
        try:
            self._table.create_write_transaction(actions, "append", self._table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise self._fail(f"another process changed the table during the write ({error})") from error
        self._table.load_as_version(version + 1)

    def _find_candidates(self, files: TableFiles) -> None:
        """Add the rows of the table that may have to be removed to the slices."""
        for number, rows in files.read_all(self._match):
            at = np.flatnonzero(self._filter.has(hash_rows(rows).high))
            if len(at):
                self._slices.add(rows.take(pa.array(at)).append_column(DIFF_FIELD, pa.array(at + number)))

    def _mark(self, marks: _Marks) -> int:
        """Mark the rows to remove. Returns the number of those that are not in the table."""
        lacking = 0
        for index in range(_SLICES):
            stored = self._slices.scan(index)
            rows = next(stored, None)
            removed = [self._none]
            while rows is not None and rows[DIFF][0].as_py() < 0:
                removed.append(rows)
                rows = next(stored, None)
            rest = consolidate_delta(pa.concat_tables(removed))
            while rows is not None:
                found, count = [self._none], 0
                while rows is not None and count < max(_MATCHED_ROWS, rest.num_rows):
                    found.append(rows)
                    count += rows.num_rows
                    rows = next(stored, None)
                rest = marks.match(rest, pa.concat_tables(found))
            lacking -= pc.sum(rest[DIFF]).as_py() or 0
        return lacking

    def _write_files(self, scratch: Path, rows: pa.RecordBatchReader) -> list[_Added]:
        """Write the rows to a Delta table of their own. The log of this table names the files."""
        try:
            table = DeltaTable.create(scratch, self._schema)
            write_deltalake(table, rows, mode="append")
            log = (scratch / "_delta_log" / f"{table.version():020d}.json").read_bytes()
        except Exception as error:  # the package also raises built-in errors
            raise ScratchUnavailable(path=scratch_directory(), why=str(error).partition("\n")[0]) from error
        actions = [msgspec.json.decode(line, type=_Action) for line in log.splitlines()]
        return [action.add for action in actions if action.add is not None]

    def _copy(self, scratch: Path, names: list[str], sync: Callable[[list[str]], None]) -> None:
        source, target = fs.LocalFileSystem(), open_filesystem(self._table)
        try:
            for name in names:
                fs.copy_files(str(scratch / name), name, source_filesystem=source, destination_filesystem=target)
            sync(names)
        except BaseException:
            for name in names:
                with suppress(Exception):
                    target.delete_file(name)
            raise


class _HashFilter:
    """A set of hashes in a bitmap: `has` is also true for some that were not added."""

    def __init__(self) -> None:
        self._bytes = np.zeros(_FILTER_BITS // 8, np.uint8)

    def add(self, hashes: Words) -> None:
        places, bits = _locate(hashes)
        np.bitwise_or.at(self._bytes, places, bits)

    def has(self, hashes: Words) -> Bools:
        places, bits = _locate(hashes)
        found: Bools = (self._bytes[places] & bits) != 0
        return found


def _locate(hashes: Words) -> tuple[Longs, Any]:
    """The slices use the upper bits of the hash, the filter the lower ones."""
    places = (hashes & np.uint64(_FILTER_BITS - 1)).astype(np.int64)
    return places >> 3, np.left_shift(1, places & 7).astype(np.uint8)


class _Marks:
    """The numbers of the rows to remove, on disk."""

    def __init__(self, starts: list[int]) -> None:
        self._starts = np.array(starts)
        self._total = max(1, starts[-1])
        self.counts = np.zeros(len(starts) - 1, np.int64)
        """The marked rows of each file."""
        self._slices = Slices(_MARKED, _MARKED_SLICES, choose_by_time(0, self._total))
        self._loaded: tuple[int, Longs] = (-1, np.empty(0, np.int64))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._slices.__exit__(kind, error, at)

    def match(self, removed: pa.Table, rows: pa.Table) -> pa.Table:
        """Mark those of `rows` that are removed, and return the rows that are still to be removed."""
        found, rest = match_removed(removed, rows.drop_columns([DIFF]))
        numbers = rows[DIFF].to_numpy()[found]
        self._slices.add(pa.table([numbers], schema=_MARKED))
        files = np.searchsorted(self._starts, numbers, side="right") - 1
        self.counts += np.bincount(files, minlength=len(self.counts))
        return rest

    def find_unmarked(self, start: int, rows: int) -> Bools:
        """Which of these rows are not marked. Calls must go up, after all rows were marked."""
        unmarked = np.ones(rows, np.bool_)
        first, last = (number * _MARKED_SLICES // self._total for number in (start, start + rows - 1))
        for index in range(first, last + 1):
            if index != self._loaded[0]:
                self._loaded = index, np.sort(self._slices.take(index)[TIME].to_numpy())
            numbers = self._loaded[1]
            low, high = np.searchsorted(numbers, [start, start + rows])
            unmarked[numbers[low:high] - start] = False
        return unmarked


def _make_add(added: _Added) -> AddAction:
    return AddAction(
        path=added.path,
        size=added.size,
        partition_values={},
        modification_time=added.modification_time,
        data_change=True,
        stats=added.stats,
    )
