"""The bodies of the tasks of a wide step. They run on executors and know nothing of Spark.

Storage errors are returned, not raised: Spark would turn them into its own errors, and repeat the task (`Failed`). Only
`read_leaf`, whose rows go to Catalyst, has to raise them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from evertide.errors import Damaged, EvertideError, OutcomeUnknown, Unavailable
from evertide.flow.leaf_rows import add_sign
from evertide.flow.wide.groups import FoundGroups, GroupsTask, compute_groups
from evertide.flow.wide.outlets import Attempt, Outlet, Outlets, Tools
from evertide.flow.wide.pieces import Piece
from evertide.rows.changes import DIFF, DIFF_FIELD, expand_in_tables
from evertide.rows.conform import conform_table

_T = TypeVar("_T")
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Failed:
    """A storage error in a task."""

    error: EvertideError


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Reads pieces of a collection, and passes their rows to outlets."""

    pieces: tuple[Piece, ...]
    columns: tuple[str, ...]
    """Of the pieces, in the order of `schema`."""
    schema: pa.Schema
    """Of the rows that the outlets get."""
    outlets: tuple[Outlet, ...]


@dataclass(frozen=True, slots=True)
class LeafTask:
    """Reads pieces of a leaf as rows for Catalyst, each as often as it occurs."""

    pieces: tuple[Piece, ...]
    schema: pa.Schema
    """The columns that the fragment reads."""


def run_task(tools: Tools, task: CopyTask | GroupsTask, number: str) -> Any:
    """Per outlet, what it wrote; for groups also their state."""
    return _return_failures(lambda: _run(task, Attempt(tools, number)))


def _run(task: CopyTask | GroupsTask, attempt: Attempt) -> list[Any] | FoundGroups:
    if isinstance(task, GroupsTask):
        return compute_groups(task, attempt)
    outlets = Outlets(task.outlets, attempt)
    schema = pa.schema([*task.schema, DIFF_FIELD])
    for piece in task.pieces:
        for rows in piece.read(attempt.tools.blob, list(dict.fromkeys(task.columns))):
            columns = [rows.column(name) for name in (*task.columns, DIFF)]
            outlets.take(pa.Table.from_arrays(columns, schema=schema))
    return outlets.finish()


def read_leaf(task: LeafTask, tools: Tools) -> Iterator[bytes]:
    """The rows as messages of Arrow IPC, without the schema."""
    for piece in task.pieces:
        for rows in piece.read(tools.blob, task.schema.names):
            for table in expand_in_tables(rows, "leaf"):
                typed = pa.Table.from_arrays(table.columns, schema=task.schema)
                for batch in typed.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
                    yield batch.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class TailTask:
    """Passes the rows that Catalyst computed to outlets."""

    received: pa.Schema
    """Of the batches, as Spark makes them."""
    schema: pa.Schema
    outlets: tuple[Outlet, ...]


def run_tail(task: TailTask, tools: Tools, batches: Iterator[bytes], number: str) -> Any:
    """Per outlet, what it wrote. The batches are messages of Arrow IPC, without the schema."""
    return _return_failures(lambda: _run_tail(task, batches, Outlets(task.outlets, Attempt(tools, number))))


def _run_tail(task: TailTask, batches: Iterator[bytes], outlets: Outlets) -> list[Any]:
    for data in batches:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), task.received)
        rows = conform_table(pa.Table.from_batches([batch], task.received), task.schema)
        outlets.take(add_sign(rows, 1))
    return outlets.finish()


def _return_failures(work: Callable[[], _T]) -> _T | Failed:
    try:
        return work()
    except (Unavailable, OutcomeUnknown, Damaged) as error:
        return Failed(error)
