"""The interface between a pipeline and the engine that computes its views.

An *engine* has the declarations of the script. A *cohort* is a set of views that share one circuit and its state; every
cohort applies every transaction. Pipelines run on Spark (`evertide.pipeline.spark_engine`); crash tests use their own
small engines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.state_part import PartEntry
from evertide.flow.wide.step import WideInput, WideResult
from evertide.plan.catalyst.jobs import Jobs
from evertide.plan.program.properties import SinkProperties
from evertide.store.blob import Blob
from evertide.store.paths import Name
from evertide.threads.stopping import IsStopping, never_stopping


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table as the script declares it."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    connector: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    is_kept: bool = True
    where: str = ""
    """Script and line, for messages."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """By column, the SQL of its default value."""
    sinks: tuple[SinkProperties, ...] = ()
    comment: str = ""
    refused_key: str = ""
    """Why no new table may have this key; empty if it may. A stored table keeps it."""

    @property
    def can_delete(self) -> bool:
        """Whether a delete finds the row that it removes: by the key, or among the stored rows."""
        return bool(self.key) or self.is_kept


@dataclass(frozen=True, slots=True)
class DeclaredView:
    name: str
    schema: pa.Schema
    fingerprint: str
    """Changes when the result of the view's query may change."""
    reads: tuple[str, ...]
    """The tables and views that the view reads directly."""
    sinks: tuple[SinkProperties, ...] = ()
    key: tuple[str, ...] = ()
    """Columns that identify a row; empty if none are known."""
    comment: str = ""
    sql: str = ""
    """The query; empty if the view is declared in Python."""
    query_digest: str = ""
    """A hash of the texts of the query and of the views under it; empty if one of them is declared in Python.

    It stays the same when another version of Evertide or Spark changes the fingerprint.
    """


@dataclass(slots=True)
class WideSteps:
    """The wide steps of this process (`evertide.flow.wide`), and why it cannot make any."""

    problem: str | None = None
    """Why executors cannot be used; empty if they can, None if that is unknown."""
    used: dict[int, frozenset[str]] = field(default_factory=dict)
    """By number, the keys of the blobs that the result of an ended step has. Others with its number are garbage."""

    def end(self, number: int, used: frozenset[str] = frozenset()) -> None:
        """Record that a step has ended, with the blobs that its result has."""
        self.used[number] = used

    def set_problem(self, why: str | None) -> None:
        self.problem = why

    def is_garbage(self, key: str) -> bool:
        """Whether an ended step wrote the blob, and its result does not have it."""
        name = Name.parse(key)
        used = self.used.get(name.seq) if name is not None and name.attempt else None
        return used is not None and key not in used


@dataclass(frozen=True, slots=True)
class StateStore:
    """The storage of state, shared by all cohorts and tables of a process."""

    blob: Blob
    cache: RowGroupCache
    new_name: Callable[[], Name]
    abandoned: list[str] = field(default_factory=list)
    """Keys of parts of discarded state, until `drain` returns them."""
    wide_steps: WideSteps = field(default_factory=WideSteps)

    def abandon(self, cohort: Cohort) -> tuple[str, ...]:
        """Let garbage collection delete the state of a discarded cohort; return the keys of its parts."""
        keys = tuple(part.key for part in cohort.parts())
        self.abandoned.extend([*keys, *cohort.drain_released()])
        return keys


def drain(keys: list[str]) -> list[str]:
    """Remove and return all keys; other threads may append to the list meanwhile."""
    found = []
    while keys:
        found.append(keys.pop())
    return found


class Cohort(Protocol):
    """Views that are computed together, in one step per transaction, and share state."""

    @property
    def views(self) -> Mapping[str, pa.Schema]: ...

    def step(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Apply the deltas of tables; return the deltas of views. If it raises `ViewFailed`, nothing changed."""
        ...

    def drop(self, views: Collection[str]) -> None: ...

    def save(self) -> tuple[bytes, list[PartEntry]]:
        """Make the state durable; return the bytes that restore it, and the parts that they name."""
        ...

    def parts(self) -> list[PartEntry]:
        """The parts in use."""
        ...

    def arrangements(self) -> Iterable[Arrangement]:
        """The state. Any thread may call it at any time."""
        ...

    def drain_released(self) -> list[str]:
        """Keys of parts that are no longer used; each is returned once."""
        ...

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """Merge state by one step. False if there is nothing to merge, or the caller stops."""
        ...


@runtime_checkable
class WideCohort(Protocol):
    """A cohort that executors can compute from the content of its tables, before its first step."""

    @property
    def jobs(self) -> Jobs: ...

    @property
    def views(self) -> Mapping[str, pa.Schema]: ...

    def describe_table(self, name: str) -> tuple[pa.Schema, pa.Schema]:
        """The columns of a table, and the same named by position."""
        ...

    def compute_wide(self, given: WideInput) -> WideResult: ...


class Engine(Protocol):
    """Computes the views of a pipeline from the deltas of its tables."""

    @property
    def tables(self) -> Mapping[str, DeclaredTable]: ...

    @property
    def views(self) -> Mapping[str, DeclaredView]: ...

    @property
    def plain_views(self) -> Collection[str]:
        """The views that are not materialized, but are part of the queries that read them."""
        ...

    @property
    def fingerprint(self) -> str: ...

    def spell(self, names: Mapping[str, str]) -> None:
        """Use the storage's spelling of collections: `names` has it by the name in lower case.

        Called before anything else. SQL does not distinguish upper and lower case in names, and a storage keeps the
        spelling that a collection was first declared with.
        """
        ...

    def cohort(self, views: Collection[str], store: StateStore, state: bytes | None) -> Cohort: ...

    def share_cores(self) -> AbstractContextManager[None]:
        """Within the block, this thread's computations share the cores with the transactions."""
        ...

    def close(self) -> None: ...
