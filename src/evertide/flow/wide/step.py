"""A wide step: computes all views of a circuit from the content of their tables, with tasks on executors.

The operators run in their order, each as one or two jobs. The driver has names, counts and samples of words:

    a table          its parts are pieces. If rows were removed, an exchange by ranges of words adds them up first
    a stage          one job: tasks read the pieces of its leaves, Catalyst computes, tasks write what readers need
    an aggregate     the tasks that compute its input sum their rows. A second job adds up the groups of each range
    top-k            one job, whose first rows come to the driver
    few rows         everything up to `ROWS_SMALL_MAX` rows is computed in the driver, by the same functions

1. There are no rows before the step, so it needs no look-ups, and each stage computes its result over all rows.
2. State and content are the same as if the circuit had processed the tables' content as one transaction: equal digests,
   and equal rows once they are added up. The number of parts and runs, and their bytes, may differ.
3. Only what successful attempts of tasks returned is used. `adopt` adds the runs to the arrangements at the end; if the
   step fails, nothing has changed.
4. The storage must have what tasks say they wrote before it is used.
5. The step may fail by a row, an executor, the storage or a query: the caller computes the views in another way, which
   finds the cause. A task returns an error of storage, and it is raised as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import BlobDamaged
from evertide.flow import pairs
from evertide.flow.aggregates.top import Top
from evertide.flow.aggregates.totals import Totals
from evertide.flow.collection import CircuitCollection, Leaf
from evertide.flow.stage import RunKind, Stage, list_joined
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.runs import PartRun
from evertide.flow.wide.groups import GroupsTask, compute_groups
from evertide.flow.wide.outlets import (
    EXCHANGE,
    SAMPLE_STEP,
    Attempt,
    GroupsOutlet,
    Outlet,
    Outlets,
    PartialGroups,
    RowsOutlet,
    RunOutlet,
    StoredContent,
    Tools,
    ViewOutlet,
)
from evertide.flow.wide.pieces import (
    LocalPiece,
    Piece,
    RangePiece,
    SelectedPiece,
    ShardPiece,
    SortedRun,
    WordRange,
    cut_into_ranges,
)
from evertide.flow.wide.tasks import CopyTask, Failed, LeafTask, TailTask, read_leaf, run_tail, run_task
from evertide.plan.catalyst.jobs import Jobs
from evertide.plan.fragment import fragment
from evertide.plan.fragment.fragment import StoredLeaf
from evertide.rows.changes import DIFF, DIFF_FIELD, consolidate_delta, expand
from evertide.rows.columns import Longs
from evertide.rows.digest import ZERO, add_digests
from evertide.shard.shard import Shard
from evertide.store.blob import Blob
from evertide.threads.steps import note_step
from evertide.threads.stopping import IsStopping, check_not_stopping, never_stopping

TASK_ROWS = 1_000_000
"""Rows that a task reads, unless one piece has more."""
TASK_BYTES = 64 * 1024 * 1024
_CHECKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class WideInput:
    jobs: Jobs
    tools: Tools
    tables: Mapping[str, Sequence[ShardPiece]]
    """The content of each table that the views read."""
    shards: Mapping[str, Shard]
    """By view, the shard that gets its content; without one, only the digest is computed."""
    time: int
    """The time of the content in the shards."""
    is_stopping: IsStopping = never_stopping
    progress: Callable[[int, int], None] = lambda *_: None
    """Called before each operator, with the number of those that are computed, and of all."""


@dataclass(slots=True)
class WideResult:
    runs: dict[str, list[PartRun]] = field(default_factory=dict)
    """By arrangement."""
    content: dict[str, StoredContent] = field(default_factory=dict)
    """By view."""

    def add_content(self, view: str, found: StoredContent) -> None:
        before = self.content[view]
        digest = add_digests(before.digest, found.digest)
        self.content[view] = StoredContent(before.parts + found.parts, before.rows + found.rows, digest)

    def check_stored(self, blob: Blob) -> None:
        """Raise `BlobMissing` or `BlobDamaged` unless the storage has all that tasks say they wrote. An executor may
        have another directory, under the same path."""
        stored = [(part.key, part.bytes) for found in self.content.values() for part in found.parts if part.key]
        stored += [(entry.key, entry.bytes) for runs in self.runs.values() for run in runs for entry in run.entries]

        def check(stored_blob: tuple[str, int]) -> None:
            key, size = stored_blob
            if len(found := blob.get_range(key, size - 1, 2)) != 1:
                why = "the length in bytes differs"
                raise BlobDamaged(
                    path=blob.path(key), why=why, expected=str(size), found=f"{size - 1 + len(found)} or another"
                )

        with ThreadPoolExecutor(_CHECKS_AT_ONCE, "evertide-check") as pool:
            for _ in pool.map(check, stored):
                pass

    def list_keys(self) -> frozenset[str]:
        """The blobs that the state uses."""
        return frozenset(entry.key for runs in self.runs.values() for run in runs for entry in run.entries)


class WideStep:
    def __init__(
        self,
        collections: Mapping[str, CircuitCollection],
        parts: Sequence[Stage | Top | Totals],
        views: Mapping[str, pa.Schema],
        given: WideInput,
    ) -> None:
        """`collections` has tables and views by name."""
        self._parts = parts
        self._given = given
        self._tools = given.tools
        self._tables = {name: collections[name] for name in given.tables}
        self._views = {name: (collections[name], schema) for name, schema in views.items()}
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        """By collection: its rows, if a stage or top-k reads them."""
        self._partial: dict[int, list[PartialGroups]] = {}
        """By aggregate."""
        self._result = WideResult(content={name: StoredContent((), 0, ZERO) for name in views})
        self._samples: dict[str, list[Longs]] = {}
        """By arrangement: samples of the words of its runs."""
        self._numbers = count(1)

    def run(self) -> WideResult:
        work: list[Callable[[], None]] = [partial(self._read_table, name) for name in self._tables]
        work += [partial(self._compute, part) for part in self._parts]
        for number, each in enumerate(work):
            check_not_stopping(self._given.is_stopping)
            self._given.progress(number, len(work))
            each()
            note_step()
        return self._result

    def _read_table(self, name: str) -> None:
        table, pieces = self._tables[name], self._given.tables[name]
        outlets = self._list_outlets(table)
        is_read = self._is_read(table)
        if not outlets and not is_read:
            return
        if any(piece.has_retractions for piece in pieces):
            ranges = self._exchange(table, pieces)
            self._pieces[id(table)] = self._copy(table, ranges, [*outlets, *([RowsOutlet()] if is_read else [])])
            return
        if outlets:
            self._copy(table, pieces, outlets)
        self._pieces[id(table)] = tuple(pieces)

    def _exchange(self, table: CircuitCollection, pieces: Sequence[Piece]) -> list[Piece]:
        """Pieces in which the changes of each row are added up."""
        outlet = RunOutlet(EXCHANGE, table.schema, ())
        tasks = [CopyTask(some, tuple(table.schema.names), table.schema, (outlet,)) for some in self._group(pieces)]
        runs = [run for [found] in self._run(tasks) for run in found]
        return self._cut(runs, table.schema)

    def _cut(self, runs: Sequence[SortedRun], schema: pa.Schema) -> list[Piece]:
        rows, size = sum(run.rows for run in runs), sum(run.bytes for run in runs)
        ranges = cut_into_ranges(runs, self._count_tasks(rows, size))
        share = len(ranges)
        return [RangePiece(_prune(runs, each), schema, each, rows // share + 1, size // share + 1) for each in ranges]

    def _copy(
        self,
        collection: CircuitCollection,
        pieces: Sequence[Piece],
        outlets: Sequence[Outlet],
        columns: Sequence[str] = (),
    ) -> tuple[Piece, ...]:
        """Pass rows to outlets; `columns` are those of the pieces, by default the collection's."""
        given = dict(zip(collection.schema.names, columns or collection.schema.names, strict=True))
        needed = {name for each in outlets for name in (given if each.columns is None else each.columns)}
        kept = [name for name in given if name in needed] or collection.schema.names[:1]
        names, schema = tuple(given[name] for name in kept), pa.schema([collection.schema.field(name) for name in kept])
        tasks = [CopyTask(some, names, schema, tuple(outlets)) for some in self._group(pieces)]
        return self._take(collection, outlets, self._run(tasks))

    def _compute(self, part: Stage | Top | Totals) -> None:
        if isinstance(part, Stage):
            self._compute_stage(part)
        elif isinstance(part, Totals):
            self._compute_totals(part)
        else:
            self._compute_top(part)

    def _compute_stage(self, stage: Stage) -> None:
        leaves = [self._pieces.get(id(leaf.collection), ()) for leaf in stage.leaves]
        counts = [_count_rows(pieces) for pieces in leaves]
        if stage.is_empty(counts):
            self._pieces[id(stage.output)] = ()
            return
        outlets = self._list_outlets(stage.output)
        wanted = [*outlets, *([RowsOutlet()] if self._is_read(stage.output) else [])]
        if (renamed := stage.list_selected_columns()) is not None:
            [pieces] = leaves
            self._rename(stage.output, pieces, outlets, renamed)
        elif sum(counts) <= fragment.ROWS_SMALL_MAX:
            stage.count_run(RunKind.SMALL)
            tables = [self._read_leaf(leaf, pieces) for leaf, pieces in zip(stage.leaves, leaves, strict=True)]
            self._take_local(stage.output, stage.fragment.run([(1, tables)]))
        else:
            stage.count_run(RunKind.WIDE)
            stored = [self._store(leaf, pieces) for leaf, pieces in zip(stage.leaves, leaves, strict=True)]
            condensed = self._condense(stage, stored, counts)
            if condensed is not None:
                self._take_local(stage.output, condensed)
                return
            task = TailTask(stage.fragment.stored_schema, stage.output.schema, tuple(wanted))
            size = sum(piece.bytes for pieces in leaves for piece in pieces)
            partitions = self._count_tasks(sum(counts), size)
            found = stage.fragment.run_stored(
                self._given.jobs, stored, partial(run_tail, task, self._tools), partitions
            )
            self._pieces[id(stage.output)] = self._take(stage.output, wanted, _raise_failures(found))

    def _condense(self, stage: Stage, leaves: Sequence[StoredLeaf], counts: Sequence[int]) -> pa.Table | None:
        """Rows with the same sums, if the only reader sums them, and the stage makes many more than it reads."""
        uses = stage.output.uses
        if uses is None or not (stage.has_expansion or self._multiplies(stage, sum(counts))):
            return None
        rows_max = min(sum(counts), self._tools.settings.portion_rows_max)  # the condensed rows come to the driver
        return stage.fragment.condense_stored(self._given.jobs, leaves, uses, rows_max)

    def _multiplies(self, stage: Stage, rows: int) -> bool:
        """Whether a join of two leaves makes many more rows than the stage reads, by the samples of their words."""
        for lookups in list_joined(stage.cut, pairs.MULTIPLYING):
            if not all(attributes for _, attributes in lookups):
                return True  # a join without keys
            left, right = (self._find_words(stage.leaves[at], attributes) for at, attributes in lookups)
            if pairs.estimate_pairs(left, right, SAMPLE_STEP) > pairs.FACTOR * rows:
                return True
        return False

    def _find_words(self, leaf: Leaf, attributes: Sequence[int]) -> Longs:
        """Samples of the words of a leaf's arrangement by these attributes; none if it has no such arrangement."""
        key = tuple(dict.fromkeys(map(leaf.get_column, attributes)))
        arrangement = leaf.collection.arrangements.get((key, leaf.columns))
        samples = [] if arrangement is None else self._samples.get(arrangement.name, [])
        return np.concatenate(samples) if samples else np.empty(0, np.int64)

    def _rename(
        self, output: CircuitCollection, pieces: Sequence[Piece], outlets: Sequence[Outlet], columns: Sequence[str]
    ) -> None:
        if outlets:
            self._copy(output, pieces, outlets, columns)
        self._pieces[id(output)] = tuple(SelectedPiece(piece, tuple(columns), output.schema) for piece in pieces)

    def _compute_totals(self, totals: Totals) -> None:
        plan, partial_groups = totals.groups, self._partial.get(id(totals), [])
        states = tuple(run for each in partial_groups for run in each.states)
        for at, places in enumerate(plan.alike):
            self._add_runs(plan.name_values(places), [run for each in partial_groups for run in each.values[at]])
        if not states and plan.keys:
            self._pieces[id(totals)] = ()
            return
        outlets = self._list_outlets(totals)
        outlets += [RowsOutlet()] if self._is_read(totals) else []
        rows, size = sum(run.rows for run in states), sum(run.bytes for run in states)
        ranges = cut_into_ranges(states, self._count_tasks(rows, size) if plan.keys else 1)
        tasks = [GroupsTask(plan, _prune(states, each), each, tuple(outlets)) for each in ranges]
        if rows <= fragment.ROWS_SMALL_MAX:
            found = [compute_groups(task, self._make_attempt()) for task in tasks]
        else:
            found = self._run(tasks)
        entries = tuple(entry for each in found if each.state is not None for entry in each.state.entries)
        if entries:  # of ranges in order, so they are one run
            self._result.runs.setdefault(plan.name, []).append(PartRun(entries))
        self._pieces[id(totals)] = self._take(totals, outlets, [each.written for each in found])

    def _compute_top(self, top: Top) -> None:
        pieces = self._pieces.get(id(top.inputs), ())
        if not _count_rows(pieces):
            self._pieces[id(top)] = ()
            return
        if _count_rows(pieces) <= fragment.ROWS_SMALL_MAX:
            rows = expand(_read_all(pieces, top.inputs.schema, self._tools), top.name)
            first = top.fragment.run([(1, [rows])])
        else:
            leaf = self._store_pieces(pieces, top.inputs.schema)
            first = top.fragment.collect_stored(self._given.jobs, [leaf])
        state, shown = top.start(first.drop_columns([DIFF]))
        [written] = self._write([RunOutlet(top.state.name, top.state.schema, top.state.key)], state)
        self._add_runs(top.state.name, written)
        self._take_local(top, shown)

    def _list_outlets(self, collection: CircuitCollection) -> list[Outlet]:
        """What readers and users need of a collection, besides its rows."""
        found: list[Outlet] = [RunOutlet(each.name, each.schema, each.key) for each in collection.arrangements.values()]
        for name, (viewed, schema) in self._views.items():
            if viewed is collection:
                shard = self._given.shards.get(name)
                stored = schema if shard is None else shard.schema
                found.append(ViewOutlet(name, schema, "" if shard is None else shard.name, stored, self._given.time))
        found += [
            GroupsOutlet(part.groups) for part in self._parts if isinstance(part, Totals) and part.inputs is collection
        ]
        return found

    def _is_read(self, collection: CircuitCollection) -> bool:
        """Whether a stage or a top-k reads the rows."""
        for part in self._parts:
            if isinstance(part, Stage) and any(leaf.collection is collection for leaf in part.leaves):
                return True
            if isinstance(part, Top) and part.inputs is collection:
                return True
        return False

    def _take(
        self, collection: CircuitCollection, outlets: Sequence[Outlet], written: Iterable[Sequence[Any]]
    ) -> tuple[Piece, ...]:
        """Record what the tasks wrote, per task and outlet; return the pieces of a `RowsOutlet`."""
        pieces: list[Piece] = []
        readers = [part for part in self._parts if isinstance(part, Totals) and part.inputs is collection]
        for results in written:
            totals = iter(readers)
            for outlet, result in zip(outlets, results, strict=True):
                if isinstance(outlet, RunOutlet):
                    self._add_runs(outlet.name, result)
                elif isinstance(outlet, ViewOutlet):
                    self._result.add_content(outlet.view, result)
                elif isinstance(outlet, GroupsOutlet):
                    self._partial.setdefault(id(next(totals)), []).append(result)
                else:
                    pieces += result
        return tuple(pieces)

    def _take_local(self, collection: CircuitCollection, rows: pa.Table) -> None:
        """Take rows that the driver has computed."""
        outlets, is_small = self._list_outlets(collection), rows.num_rows <= fragment.ROWS_SMALL_MAX
        outlets += [RowsOutlet()] if self._is_read(collection) and not is_small else []
        pieces = self._take(collection, outlets, [self._write(outlets, rows)])
        self._pieces[id(collection)] = (LocalPiece(rows),) if is_small else pieces

    def _write(self, outlets: Sequence[Outlet], rows: pa.Table) -> list[Any]:
        opened = Outlets(outlets, self._make_attempt())
        opened.take(rows)
        return opened.finish()

    def _make_attempt(self) -> Attempt:
        """An attempt in the driver. Its number has that of the step: two tries write view parts under one claim."""
        return Attempt(self._tools, f"d{self._tools.seq}x{next(self._numbers)}")

    def _add_runs(self, name: str, runs: Iterable[SortedRun]) -> None:
        for run in runs:
            self._result.runs.setdefault(name, []).append(PartRun(run.entries))
            self._samples.setdefault(name, []).append(np.array(run.words, np.int64))

    def _run(self, tasks: Sequence[CopyTask | GroupsTask]) -> list[Any]:
        return _raise_failures(self._given.jobs.map(partial(run_task, self._tools), tasks)) if tasks else []

    def _read_leaf(self, leaf: Leaf, pieces: Sequence[Piece]) -> pa.Table:
        schema = pa.schema([leaf.collection.schema.field(column) for column in leaf.columns])
        return expand(_read_all(pieces, schema, self._tools), leaf.collection.name)

    def _store(self, leaf: Leaf, pieces: Sequence[Piece]) -> StoredLeaf:
        schema = pa.schema([leaf.collection.schema.field(column) for column in leaf.columns])
        return self._store_pieces(pieces, schema)

    def _store_pieces(self, pieces: Sequence[Piece], schema: pa.Schema) -> StoredLeaf:
        tasks = [LeafTask(some, schema) for some in self._group(pieces) if _count_rows(some)]
        size = sum(piece.bytes for piece in pieces)
        return StoredLeaf(partial(read_leaf, tools=self._tools), tasks, size)

    def _group(self, pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
        """The pieces of each task: about as many rows and bytes in each."""
        rows, size = _count_rows(pieces), sum(piece.bytes for piece in pieces)
        number = self._count_tasks(rows, size)
        groups: list[list[Piece]] = []
        taken = 0.0
        for piece in pieces:
            if not groups or taken * number >= len(groups):
                groups.append([])
            groups[-1].append(piece)
            taken += max(piece.rows / max(rows, 1), piece.bytes / max(size, 1)) / 2 + 1e-9
        return [tuple(group) for group in groups]

    def _count_tasks(self, rows: int, size: int) -> int:
        needed = max(-(-rows // TASK_ROWS), -(-size // TASK_BYTES))
        return max(1, needed, min(self._given.jobs.parallelism, -(-rows // max(1, fragment.ROWS_SMALL_MAX))))


def adopt_runs(result: WideResult, arrangements: Mapping[str, Arrangement]) -> None:
    for name, runs in result.runs.items():
        arrangements[name].adopt(runs)


def _raise_failures(found: list[Any]) -> list[Any]:
    for each in found:
        if isinstance(each, Failed):
            raise each.error
    return found


def _prune(runs: Iterable[SortedRun], of: WordRange) -> tuple[SortedRun, ...]:
    """The runs with words in the range, without their samples, which would be sent with each task."""
    return tuple(replace(run, words=()) for run in runs if of.overlaps(run.entries[0].least, run.entries[-1].greatest))


def _count_rows(pieces: Iterable[Piece]) -> int:
    return sum(piece.rows for piece in pieces)


def _read_all(pieces: Iterable[Piece], schema: pa.Schema, tools: Tools) -> pa.Table:
    """All rows, each once with its count."""
    whole = pa.schema([*schema, DIFF_FIELD])
    tables = [
        pa.Table.from_arrays(rows.columns, schema=whole)
        for piece in pieces
        for rows in piece.read(tools.blob, schema.names)
    ]
    return consolidate_delta(pa.concat_tables([whole.empty_table(), *tables]), "pieces", is_sorted=False)
