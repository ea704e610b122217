"""Outlets: what a task makes of the rows of a collection that it computes.

    RunOutlet      sorted runs of an arrangement, or for an exchange by ranges of words
    ViewOutlet     the parts of a view's shard, or only the digest of the rows
    RowsOutlet     rows for the next job, unsorted
    GroupsOutlet   the groups of an aggregate that reads the collection, over the rows of this task

1. An outlet gets tables of rows with positive diffs. It writes whenever it has `_ROWS_MAX` rows or `_BYTES_MAX` bytes,
   so that a task needs bounded memory, however many rows a join makes.
2. Blobs have names of the writer and of this step, with the number of the task's attempt. Only those of successful
   attempts are used; the others are deleted when the step has ended, or by garbage collection.
3. An outlet is sent to executors; `open` makes its state in the task.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from evertide.flow.aggregates.group_plan import GroupPlan
from evertide.flow.leaf_rows import add_sign
from evertide.flow.state.block import RowBlock, make_block
from evertide.flow.state.merge import write_run
from evertide.flow.state.spine import ArrangementSettings
from evertide.flow.state.state_part import PartEntry, PartWriter
from evertide.flow.wide.pieces import RowsPiece, SortedRun
from evertide.rows.changes import DIFF, DIFF_FIELD, TIME, check_changes, consolidate_delta
from evertide.rows.digest import ZERO, RowHashes, add_digests, carry_hashes, find_hashes, hash_rows, sum_hashes, to_hex
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.append import store_parts
from evertide.shard.parts.part import Part
from evertide.store.blob import Blob
from evertide.store.paths import Name, state_part_key

_ROWS_MAX = 1_048_576
_BYTES_MAX = 64 * 1024 * 1024
SAMPLE_STEP = 256
EXCHANGE = "wide.exchange"
"""In place of an arrangement's name, in the keys of blobs that only this step reads."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the tasks of a step share."""

    blob: Blob
    runtime: Runtime
    settings: Settings
    writer: str
    seq: int
    """Of the names of the step's blobs."""
    shards_seq: int
    """Of the names of parts of shards: the claim of the writer."""
    arrangement: ArrangementSettings = field(default_factory=ArrangementSettings)


@dataclass(slots=True)
class Attempt:
    """One attempt of a task, which names the blobs that it writes."""

    tools: Tools
    number: str
    """Unique in the Spark application."""
    _count: int = 0

    def name_next(self, arrangement: str) -> str:
        self._count += 1
        return state_part_key(arrangement, Name(self.tools.writer, self.tools.seq, "parquet", self.next_suffix()))

    def next_suffix(self) -> str:
        self._count += 1
        return f"{self.number}n{self._count}"


class OpenOutlet(ABC):
    """The state of an outlet in one task."""

    def __init__(self) -> None:
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def take(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        self._pending.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= _ROWS_MAX or self._bytes >= _BYTES_MAX:
            self._flush()

    def finish(self) -> Any:
        """Write what is left; return what was written."""
        if self._pending:
            self._flush()
        return self._get_result()

    def _flush(self) -> None:
        pending, self._pending, self._rows, self._bytes = self._pending, [], 0, 0
        self._write(pa.concat_tables(pending))

    @abstractmethod
    def _write(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def _get_result(self) -> Any: ...


class Outlet(Protocol):
    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that are needed; None for all."""
        ...

    def open(self, attempt: Attempt) -> OpenOutlet: ...


@dataclass(frozen=True, slots=True)
class RunOutlet:
    """Returns a list of `SortedRun`."""

    name: str
    """Of the arrangement."""
    schema: pa.Schema
    key: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def open(self, attempt: Attempt) -> OpenOutlet:
        return _OpenRunOutlet(self, attempt)


class _OpenRunOutlet(OpenOutlet):
    def __init__(self, outlet: RunOutlet, attempt: Attempt) -> None:
        super().__init__()
        self._outlet = outlet
        self._attempt = attempt
        self._runs: list[SortedRun] = []

    def _write(self, rows: pa.Table) -> None:
        outlet = self._outlet
        chosen = rows.select([*outlet.schema.names, DIFF])
        self._runs += write_sorted(chosen, outlet.name, outlet.schema, outlet.key, self._attempt)

    def _get_result(self) -> list[SortedRun]:
        return self._runs


def write_sorted(rows: pa.Table, name: str, schema: pa.Schema, key: Sequence[str], attempt: Attempt) -> list[SortedRun]:
    """Write rows as one sorted run; none if they cancel out."""
    block = make_block(rows, schema, key, f"arrangement {name!r}")
    run = write_blocks([block], name, schema, attempt)
    return [SortedRun(run, tuple(block.words[::SAMPLE_STEP].tolist()))] if run else []


def write_blocks(blocks: Sequence[RowBlock], name: str, schema: pa.Schema, attempt: Attempt) -> tuple[PartEntry, ...]:
    """Write blocks whose words ascend as the parts of one run."""

    def put(writer: PartWriter) -> PartEntry:
        key = attempt.name_next(name)
        entry, data = writer.close(key)
        attempt.tools.blob.put(key, data)
        return entry

    limits = attempt.tools.arrangement
    found = write_run(
        (block for block in blocks if block.rows),
        schema,
        put,
        row_group_rows=limits.row_group_rows,
        part_rows_max=limits.part_rows_max,
    )
    return () if found is None else found.entries


@dataclass(frozen=True, slots=True)
class StoredContent:
    """Rows of a view that a task computed: their parts, unless they are not stored, and their digest."""

    parts: tuple[Part, ...]
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class ViewOutlet:
    """Returns a `StoredContent`."""

    view: str
    schema: pa.Schema
    """Of the view: named as users name the columns."""
    shard: str
    """Empty if the rows are not stored."""
    stored: pa.Schema
    """Of the shard."""
    time: int
    columns: None = None

    def open(self, attempt: Attempt) -> OpenOutlet:
        return _OpenViewOutlet(self, attempt)


class _OpenViewOutlet(OpenOutlet):
    def __init__(self, outlet: ViewOutlet, attempt: Attempt) -> None:
        super().__init__()
        self._outlet = outlet
        self._attempt = attempt
        self._parts: list[Part] = []
        self._count = 0
        self._digest = ZERO

    def _write(self, rows: pa.Table) -> None:
        outlet, tools = self._outlet, self._attempt.tools
        content = consolidate_delta(rows, "view")
        found = carry_hashes(content, content.rename_columns([*outlet.schema.names, DIFF]))
        hashes: RowHashes = find_hashes(found) or hash_rows(found.drop_columns([DIFF]))
        self._count += found.num_rows
        self._digest = add_digests(self._digest, to_hex(sum_hashes(hashes, found.column(DIFF).to_numpy())))
        if not outlet.shard:
            return
        times = pa.array(np.full(found.num_rows, outlet.time, np.int64))
        at = found.num_columns - 1
        timed = carry_hashes(found, found.add_column(at, pa.field(TIME, pa.int64(), nullable=False), times))
        checked = check_changes(timed, outlet.stored, outlet.time, outlet.time + 1, f"shard {outlet.shard!r}")
        self._parts += store_parts(
            checked,
            shard=outlet.shard,
            blob=tools.blob,
            writer=tools.writer,
            seq=tools.shards_seq,
            attempt=self._attempt.next_suffix(),
            runtime=tools.runtime,
            settings=tools.settings,
        )

    def _get_result(self) -> StoredContent:
        return StoredContent(tuple(self._parts), self._count, self._digest)


@dataclass(frozen=True, slots=True)
class RowsOutlet:
    """Returns a list of `RowsPiece`."""

    columns: None = None

    def open(self, attempt: Attempt) -> OpenOutlet:
        return _OpenRowsOutlet(attempt)


class _OpenRowsOutlet(OpenOutlet):
    def __init__(self, attempt: Attempt) -> None:
        super().__init__()
        self._attempt = attempt
        self._found: list[RowsPiece] = []

    def _write(self, rows: pa.Table) -> None:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(rows)
        data = sink.getvalue()
        key = self._attempt.name_next(EXCHANGE)
        self._attempt.tools.blob.put(key, data)
        self._found.append(RowsPiece(key, rows.num_rows, rows.nbytes, xxhash.xxh3_64_intdigest(data)))

    def _get_result(self) -> list[RowsPiece]:
        return self._found


@dataclass(frozen=True, slots=True)
class PartialGroups:
    """The state of groups over the rows of a task, and the values of their MIN and MAX, in sorted runs."""

    states: tuple[SortedRun, ...]
    values: tuple[tuple[SortedRun, ...], ...]
    """Per `GroupPlan.alike`."""


@dataclass(frozen=True, slots=True)
class GroupsOutlet:
    """Returns a `PartialGroups`."""

    plan: GroupPlan

    @property
    def columns(self) -> tuple[str, ...]:
        return self.plan.columns

    def open(self, attempt: Attempt) -> OpenOutlet:
        return _OpenGroupsOutlet(self, attempt)


class _OpenGroupsOutlet(OpenOutlet):
    def __init__(self, outlet: GroupsOutlet, attempt: Attempt) -> None:
        super().__init__()
        self._plan = outlet.plan
        self._attempt = attempt
        self._states: list[SortedRun] = []
        self._values: list[list[SortedRun]] = [[] for _ in outlet.plan.alike]

    def _write(self, rows: pa.Table) -> None:
        plan = self._plan
        keys, grouped = plan.group(rows)
        best: dict[int, Any] = {}
        for places, runs in zip(plan.alike, self._values, strict=True):
            values = plan.make_values(rows, places, grouped)
            best.update(zip(places, plan.find_extremes(values, places, grouped.count), strict=True))
            schema = plan.make_values_schema(places)
            columns = values.select([*schema.names, DIFF]).columns
            typed = pa.Table.from_arrays(columns, schema=pa.schema([*schema, DIFF_FIELD]))
            runs.extend(write_sorted(typed, plan.name_values(places), schema, plan.keys, self._attempt))
        state = plan.make_state(plan.accumulate(rows, grouped), [best[at] for at in range(len(best))])
        stored = pa.Table.from_arrays([*keys.columns, *state.columns], schema=plan.stored_schema)
        self._states += write_sorted(add_sign(stored, 1), EXCHANGE, plan.stored_schema, plan.keys, self._attempt)

    def _get_result(self) -> PartialGroups:
        return PartialGroups(tuple(self._states), tuple(map(tuple, self._values)))


class Outlets:
    """The outlets of a collection in one task."""

    def __init__(self, outlets: Sequence[Outlet], attempt: Attempt) -> None:
        self._open = [each.open(attempt) for each in outlets]

    def take(self, rows: pa.Table) -> None:
        for each in self._open:
            each.take(rows)

    def finish(self) -> list[Any]:
        """Per outlet, what it wrote."""
        return [each.finish() for each in self._open]
