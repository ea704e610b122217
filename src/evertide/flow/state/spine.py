"""The spine of an arrangement: the list of its runs, and the merges that limit their number.

1. A delta is added as a run in memory. Small runs of similar size, up to `inline_rows_max` rows together, are joined at
   once. A delta with more rows (`defer`) is sorted at its first read.
2. Runs in memory that exceed `memory_rows_max` or `memory_bytes_max` are written as one run of parts.
3. `merge_fan_in` runs of parts of similar size are merged. So there are few runs of each size, and each row is
   rewritten once per size.

Invariants:

1. The sum of the runs is always the collection. A reader reads `runs` once; the list is only replaced as a whole, so
   no reader sees half of a merge.
2. Two threads never merge the same run: `push` does not touch the first `_held` runs in memory, one thread at a time
   writes memory to parts (`_writing`), and one merges parts (`_merging`).
3. The spine never deletes parts, since a manifest may name them. It releases their keys to the owner.
4. A failed write changes no run. The keys of parts that it may have stored are released.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import NamedTuple

import pyarrow as pa

from evertide.errors import OutcomeUnknown, Unavailable, Unexpected
from evertide.flow.state.block import RowBlock, merge_blocks
from evertide.flow.state.merge import merge, write_run
from evertide.flow.state.part_reader import CachedParts
from evertide.flow.state.runs import DeltaRun, MemoryRun, PartRun, Run
from evertide.flow.state.state_part import PartEntry, PartWriter
from evertide.threads.stopping import IsStopping, Stopped, never_stopping, until_stopping

logger = logging.getLogger(__name__)

_BACKSTOP = 4
"""`bound_memory` writes memory to parts if it holds this many times its limit, since `maintain` is late. The last delta
does not count: it may exceed that alone, and `maintain` had no time to write it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangementSettings:
    """Tuning. No setting changes the content of an arrangement."""

    memory_rows_max: int = 65_536
    """With more rows in memory, they are written as parts."""

    memory_bytes_max: int = 16 * 1024 * 1024

    inline_rows_max: int = 8_192
    """Runs in memory of up to this number of rows together are joined when a delta is applied."""

    row_group_rows: int = 4_096
    """Rows per row group, the smallest unit that a look-up decodes."""

    part_rows_max: int = 1_048_576
    """Rows per part; a larger run has several parts."""

    merge_fan_in: int = 8
    """The number of runs of similar size that are merged into one."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 2 if field.name == "merge_fan_in" else 1
            if value < least:
                raise Unexpected(
                    where="ArrangementSettings", why=f"{field.name} is {value}, but must be {least} or more"
                )


class Runs(NamedTuple):
    parts: tuple[PartRun, ...] = ()
    memory: tuple[MemoryRun | DeltaRun, ...] = ()

    def list_all(self) -> tuple[Run, ...]:
        return (*self.parts, *self.memory)


class Spine:
    def __init__(
        self,
        schema: pa.Schema,
        cached_parts: CachedParts,
        new_key: Callable[[], str],
        *,
        settings: ArrangementSettings,
        where: str,
        parts: Sequence[PartRun] = (),
    ) -> None:
        self.runs = Runs(tuple(parts))
        self.released: list[str] = []
        self._schema = schema
        self._cached_parts = cached_parts
        self._new_key = new_key
        self._settings = settings
        self._where = where
        self._held = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    def push(self, block: RowBlock) -> None:
        """Add a consolidated block, in the order of its words."""
        if block.rows == 0:
            return
        with self._lock:
            memory, joined = [*self.runs.memory], []
            while len(memory) > self._held and self._is_joinable(memory[-1].rows, block.rows):
                joined.append(memory.pop())
                block = self._sum([joined[-1].block, block])
            fresh = [MemoryRun(block)] if block.rows else []
            self._swap(joined, memory=(*memory, *fresh))

    def defer(self, run: DeltaRun) -> None:
        """Add a large delta, whose block is built at its first read."""
        with self._lock:
            self._swap((), memory=(*self.runs.memory, run))

    def adopt(self, runs: Sequence[PartRun]) -> None:
        """Add runs of parts that are stored already."""
        with self._lock:
            self._swap((), parts=(*self.runs.parts, *runs))

    def is_large(self, rows: int) -> bool:
        """Whether a delta with this number of rows is never joined with other runs in memory."""
        return rows > self._settings.inline_rows_max

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """Write memory to parts, or merge parts. False if there is nothing to do, or `is_stopping` ended a merge."""
        if self._is_full(self.runs.memory, 1):
            self.write_memory()
            return True
        with self._merging:
            runs = self._find_mergeable()
            try:
                if runs:
                    self._replace(runs, is_stopping)
            except Stopped:
                return False
            return bool(runs)

    def write_memory(self) -> None:
        with self._hold_memory() as memory:
            if memory:
                self._replace(memory)

    def save(self) -> tuple[tuple[PartEntry, ...], ...]:
        """The parts of each run. Runs in memory are written as well, and stay in memory."""
        with self._hold_memory() as memory:
            unsaved = [run for run in memory if not run.entries]
            saved = [run for run in memory if run.entries]
            if unsaved:
                block = self._sum([run.block for run in unsaved])
                new_run = self._write([MemoryRun(block)])
                saved += [MemoryRun(block, new_run.entries)] if new_run else []
            with self._lock:
                if unsaved:
                    self._swap(unsaved, memory=(*saved, *self.runs.memory[len(memory) :]))
                runs: list[Run] = [*self.runs.parts, *saved]
                return tuple(run.entries for run in runs)

    @contextmanager
    def _hold_memory(self) -> Iterator[tuple[MemoryRun | DeltaRun, ...]]:
        """The current runs in memory. Until the end, no other thread replaces them; new runs are added behind them."""
        with self._writing:
            with self._lock:
                memory = self.runs.memory
                self._held = len(memory)
            try:
                yield memory
            finally:
                with self._lock:
                    self._held = 0

    def _replace(self, runs: Sequence[Run], is_stopping: IsStopping = never_stopping) -> None:
        new_run = self._write(runs, is_stopping)
        replaced = {id(run) for run in runs}
        with self._lock:
            parts = [run for run in self.runs.parts if id(run) not in replaced]
            memory = [run for run in self.runs.memory if id(run) not in replaced]
            self._swap(runs, parts=(*parts, *([new_run] if new_run else ())), memory=tuple(memory))

    def _swap(
        self,
        replaced: Sequence[Run],
        *,
        parts: tuple[PartRun, ...] | None = None,
        memory: tuple[MemoryRun | DeltaRun, ...] | None = None,
    ) -> None:
        """Requires the lock. Both lists change in one assignment, or a look-up could miss rows or see them twice."""
        now = self.runs
        self.runs = Runs(now.parts if parts is None else parts, now.memory if memory is None else memory)
        for entry in (entry for run in replaced for entry in run.entries):
            self._cached_parts.drop(entry)
            self.released.append(entry.key)

    def _write(self, runs: Sequence[Run], is_stopping: IsStopping = never_stopping) -> PartRun | None:
        """Write the sum of the runs as parts; None if they cancel out."""
        begun: list[str] = []

        def put(writer: PartWriter) -> PartEntry:
            begun.append(self._new_key())
            entry, data = writer.close(begun[-1])
            self._cached_parts.blob.put(begun[-1], data)
            return entry

        blocks = merge(runs, self._cached_parts, self._where)
        limits = self._settings
        try:
            return write_run(
                until_stopping(blocks, is_stopping),
                self._schema,
                put,
                row_group_rows=limits.row_group_rows,
                part_rows_max=limits.part_rows_max,
            )
        except BaseException:
            self.released += begun
            raise

    def _sum(self, blocks: Sequence[RowBlock]) -> RowBlock:
        return merge_blocks(blocks, self._where)

    def bound_memory(self) -> None:
        """Bound the rows in memory, before a delta is added. If storage is unavailable, the commit of the transaction
        waits for it, so no further delta is added."""
        if self._is_full(self.runs.memory[:-1], _BACKSTOP):
            try:
                self.write_memory()
            except (Unavailable, OutcomeUnknown, OSError) as error:
                logger.warning(
                    "%s: could not store rows, which stay in memory beyond its limit: %s", self._where, error
                )

    def _is_full(self, memory: Sequence[Run], times: int) -> bool:
        limits = self._settings
        return (
            sum(run.rows for run in memory) > limits.memory_rows_max * times
            or sum(run.bytes for run in memory) > limits.memory_bytes_max * times
        )

    def _is_joinable(self, last_rows: int, rows: int) -> bool:
        return last_rows < 2 * rows and last_rows + rows <= self._settings.inline_rows_max

    def _find_mergeable(self) -> list[PartRun]:
        """Some runs of the smallest size of which there are at least `merge_fan_in`: a wide step may add many."""
        by_level: dict[int, list[PartRun]] = {}
        for run in self.runs.parts:
            by_level.setdefault(self._find_level(run.rows), []).append(run)
        enough = [level for level, runs in by_level.items() if len(runs) >= self._settings.merge_fan_in]
        return by_level[min(enough)][: 2 * self._settings.merge_fan_in] if enough else []

    def _find_level(self, rows: int) -> int:
        level, limit = 0, self._settings.memory_rows_max * self._settings.merge_fan_in
        while rows > limit:
            level, limit = level + 1, limit * self._settings.merge_fan_in
        return level
