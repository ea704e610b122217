"""`Observer`: the interface for components that receive events about what a process does: metrics, traces.

1. The component that does something reports it once, when it is done. A report costs one call; with `NO_OBSERVER`,
   nothing.
2. An observer is called in the thread that did the work, possibly by several threads at once. It returns within
   microseconds, never waits, and never raises: transactions wait for it.
3. Values that are needed only on request are not reported here: `status` returns them.

All `began_s` are seconds of the process's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class TimedPhase(NamedTuple):
    """One phase of a transaction: `read`, `bind`, `compute`, `commit` or `replay`."""

    phase: str
    began_s: float
    took_s: float


class WrittenSize(NamedTuple):
    """The size of a transaction's changes to a collection, as stored."""

    rows: int
    bytes: int


class TransactionOrigin(StrEnum):
    """`COMMITTED`: by this process; `PEER`: by another process, and followed; `REPLAYED`: after a start."""

    COMMITTED = "committed"
    PEER = "peer"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """A transaction is complete in all collections and in the state of this process."""

    time: int
    how: TransactionOrigin
    phases: tuple[TimedPhase, ...]
    """In order of time; a phase may occur several times."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Rows read, by source."""
    collections: Mapping[str, WrittenSize] = field(default_factory=dict)

    @property
    def began_s(self) -> float:
        return self.phases[0].began_s if self.phases else 0.0

    @property
    def took_s(self) -> float:
        return self.phases[-1].began_s + self.phases[-1].took_s - self.phases[0].began_s if self.phases else 0.0


@dataclass(frozen=True, slots=True)
class DeliveryEvent:
    """A transaction was written to a sink."""

    sink: str
    time: int
    rows: int
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    number: int
    time: int
    files: int
    bytes: int
    """Of all files that the checkpoint names; most are shared with other checkpoints."""
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """Something failed. Reported at each failure; most failures are retried automatically."""

    part: str
    """The failed component: `transaction`, `source`, `sink`, `view`, `checkpoint` or `maintenance`."""
    name: str
    """The name of the source, sink or view; empty for parts that exist once."""
    error_code: str
    phases: tuple[TimedPhase, ...] = ()
    """The phases that a failed transaction went through."""
    time: int | None = None


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """An HTTP request was answered."""

    method: str
    route: str
    """As declared, for example `/v1/tables/{table}/rows`; `other` if no route matched."""
    code: int
    began_s: float
    took_s: float
    kind: str = ""
    """For a shape request: `snapshot`, `log`, `live` or `stream`. The last two wait for changes."""
    traceparent: str = ""
    """The request's `traceparent` header, if any."""


class Observer:
    """Ignores all events. Subclasses override the methods for the events they need."""

    def on_transaction(self, event: TransactionEvent) -> None: ...

    def on_delivery(self, event: DeliveryEvent) -> None: ...

    def on_checkpoint(self, event: CheckpointEvent) -> None: ...

    def on_storage_call(self, call: str, took_s: float, size: int, error_code: str) -> None:
        """A storage call such as `blob.get`; it failed if `error_code` is set. Frequent, so without an event object."""

    def on_failure(self, event: FailureEvent) -> None: ...

    def on_request(self, event: RequestEvent) -> None: ...


NO_OBSERVER = Observer()


class ObserverGroup(Observer):
    """Forwards every event to several observers, in order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = tuple(observers)

    def on_transaction(self, event: TransactionEvent) -> None:
        for one in self._all:
            one.on_transaction(event)

    def on_delivery(self, event: DeliveryEvent) -> None:
        for one in self._all:
            one.on_delivery(event)

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        for one in self._all:
            one.on_checkpoint(event)

    def on_storage_call(self, call: str, took_s: float, size: int, error_code: str) -> None:
        for one in self._all:
            one.on_storage_call(call, took_s, size, error_code)

    def on_failure(self, event: FailureEvent) -> None:
        for one in self._all:
            one.on_failure(event)

    def on_request(self, event: RequestEvent) -> None:
        for one in self._all:
            one.on_request(event)
