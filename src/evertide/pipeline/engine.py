"""What a pipeline asks of the thing that computes its views.

An *engine* knows what the script declares. A *cohort* is some of its views with the state behind them: the views that
were there from the beginning are one, a view that was added or came back later is another. All cohorts take every
transaction. Real ones run on Spark (`evertide.pipeline.spark_engine`); tests of crashes use small ones of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.manifest import Manifest
from evertide.flow.state.row_groups import RowGroupCache
from evertide.plan.program.properties import SinkProperties
from evertide.store.blob import Blob
from evertide.store.paths import Name
from evertide.threads.stopping import IsStopping, never_stopping

__all__ = ["Cohort", "DeclaredTable", "DeclaredView", "Engine", "StatePart", "StateStore", "drain", "parts_of"]


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    connector: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    is_kept: bool = True
    where: str = ""
    """Script and line: for messages."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """By column, the SQL of the value that it has if none is given."""
    sinks: tuple[SinkProperties, ...] = ()
    comment: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredView:
    name: str
    schema: pa.Schema
    fingerprint: str
    """The same as long as the view computes the same."""
    reads: tuple[str, ...]
    """Tables and views that it reads itself."""
    sinks: tuple[SinkProperties, ...] = ()
    key: tuple[str, ...] = ()
    """Columns of which no two rows share the values; empty if none are known."""
    comment: str = ""
    sql: str = ""
    """Its query; empty if it is declared in Python."""


@dataclass(frozen=True, slots=True)
class StateStore:
    """Where state is kept: shared by all cohorts and tables of a process."""

    blob: Blob
    cache: RowGroupCache
    new_name: Callable[[], Name]
    abandoned: list[str] = field(default_factory=list)
    """Keys of parts that cohorts wrote which nobody has any more; each is told once."""


@dataclass(frozen=True, slots=True)
class StatePart:
    key: str
    bytes: int
    checksum: str


def parts_of(manifests: Iterable[Manifest]) -> list[StatePart]:
    return [StatePart(entry.key, entry.bytes, entry.checksum) for manifest in manifests for entry in manifest.entries()]


def drain(keys: list[str]) -> list[str]:
    """What the list holds, which other threads may lengthen meanwhile; it is told once."""
    found = []
    while keys:
        found.append(keys.pop())
    return found


class Cohort(Protocol):
    @property
    def views(self) -> Mapping[str, pa.Schema]: ...

    def step(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The deltas of the views, given those of the tables. `ViewFailed` changes nothing."""
        ...

    def fails(self, deltas: Mapping[str, pa.Table]) -> bool:
        """Whether a step would raise `ViewFailed`; it is not taken."""
        ...

    def drop(self, views: Collection[str]) -> None: ...

    def save(self) -> tuple[bytes, list[StatePart]]:
        """Make everything durable: what is needed to have it again, and the parts that this names."""
        ...

    def parts(self) -> list[StatePart]:
        """Those that are in use now."""
        ...

    def arrangements(self) -> Iterable[Arrangement]:
        """Its state, for those who look: any thread may, at any time."""
        ...

    def released(self) -> list[str]:
        """Keys of parts that are no longer used; each is told once."""
        ...

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """One step of merging beside the transactions; False if there is nothing to do, or who asked for it stops."""
        ...


class Engine(Protocol):
    @property
    def tables(self) -> Mapping[str, DeclaredTable]: ...

    @property
    def views(self) -> Mapping[str, DeclaredView]: ...

    @property
    def fingerprint(self) -> str: ...

    def spell(self, names: Mapping[str, str]) -> None:
        """Use the storage's spelling of collections: `names` has it by the name in lower case.

        Called before anything else. SQL does not distinguish upper and lower case in names, and a storage keeps the
        spelling that a collection was first declared with.
        """
        ...

    def cohort(self, views: Collection[str], store: StateStore, state: bytes | None) -> Cohort: ...

    def beside(self) -> AbstractContextManager[None]:
        """What this thread computes in the block runs beside the transactions, and shares the cores with them."""
        ...

    def close(self) -> None: ...
