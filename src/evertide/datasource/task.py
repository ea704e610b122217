"""Read one task on an executor: the requested rows of its parts, as Arrow (`evertide.shard.parts.part_groups`).

1. Columns and rows that were not requested are dropped before diffs are summed. This does not change the result, since
   a row is dropped whether a change adds or removes it.
2. Changes between two times are read together and consolidated per time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from evertide.datasource.condition import make_mask
from evertide.datasource.planning import ReadTask, select_columns
from evertide.datasource.request import Request
from evertide.errors import BlobMissing, LeaseLost
from evertide.pipeline.reading.reader import check_is_there
from evertide.rows.changes import DIFF, TIME, consolidate
from evertide.runtime import SystemRuntime
from evertide.shard.lease import renew_lease
from evertide.shard.parts.part import Part
from evertide.shard.parts.part_groups import is_inside, read_group
from evertide.shard.parts.split import is_ordered
from evertide.shard.read import PartListing, fetch
from evertide.shard.shard_log import ShardLog
from evertide.store.open import open_storage
from evertide.types import SequenceNumber

_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_ROWS = 65_536
_RENEWALS = 4
"""A task renews the lease when 1/_RENEWALS of the lease's lifetime has passed."""


def read_task(request: Request, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The task's rows, each as often as it occurs; or its changes, with time and diff."""
    if not task.group.parts:
        return
    check_is_there(request.storage)  # an executor without access to the directory must not create one
    runtime, settings = SystemRuntime(), request.settings
    storage = open_storage(request.storage, request.meta, runtime=runtime, settings=settings)
    try:
        log = ShardLog(task.read_point.shard, storage.blob, storage.meta, runtime, settings)
        names = select_columns(request, task.read_point).names
        for rows in _TaskReader(log, task, request.lease_s).rows():
            yield from _split_batches(rows.select(names))
    finally:
        storage.close()


class _TaskReader:
    def __init__(self, log: ShardLog, task: ReadTask, lease_s: float) -> None:
        self._log = log
        self._task = task
        self._group = task.group
        self._lease_s = lease_s
        self._renewed_at_s = task.renewed_at_s
        self._listed = PartListing(task.window, task.group.parts, task.read_point.arrow, SequenceNumber(0))
        self._output = [*task.columns, TIME, DIFF]
        self._by = next((field.name for field in task.read_point.arrow if is_ordered(field.type)), None)
        span = [task.group.span.column] if task.group.span else []
        by = [self._by] if self._by and not task.group.only_adds and task.window.as_of is not None else []
        self._needed = {*task.columns, *(condition.column for condition in task.conditions), *span, *by}

    def rows(self) -> Iterator[pa.Table]:
        if not self._group.only_adds and self._task.window.as_of is None:
            changes = pa.concat_tables([self._read_changes(part) for part in self._group.parts])
            yield consolidate(changes.select(self._output), self._task.read_point.name)
        else:
            columns = [*self._task.columns]
            yield from read_group(
                self._group, self._read_changes, columns, by=self._by, where=self._task.read_point.name
            )

    def _read_changes(self, part: Part) -> pa.Table:
        """The changes of the requested rows, in the needed columns."""
        self._renew_lease_if_due()
        try:
            table = fetch(self._log, part, self._listed, sorted(self._needed))
        except BlobMissing:
            if not renew_lease(self._log, self._task.read_point.lease):
                raise self._make_lease_error() from None
            raise
        mask = make_mask(table, self._task.conditions)
        if mask is not None:
            table = table.filter(mask)
        if self._group.span is not None:
            table = table.filter(is_inside(table.column(self._group.span.column), self._group.span))
        return table

    def _renew_lease_if_due(self) -> None:
        """A lost lease does not stop the read: `_read_changes` raises an error if a part is missing."""
        now_s = self._log.runtime.wall_s()
        if self._task.read_point.lease and now_s - self._renewed_at_s > self._lease_s / _RENEWALS:
            self._renewed_at_s = now_s
            renew_lease(self._log, self._task.read_point.lease)

    def _make_lease_error(self) -> LeaseLost:
        return LeaseLost(
            shard=self._log.shard, lease=self._task.read_point.lease, restart_from=self._task.read_point.time
        )


def _split_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Split rows into batches of bounded size."""
    if rows.num_rows:
        each = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)))
        yield from rows.to_batches(max_chunksize=each)
