"""`Observer`: who is told what a process does, as it does it: metrics, traces, feeds for people.

1. Whoever does something tells of it once, when it is done. What it costs to tell is a call; with `NOBODY`, nothing.
2. An observer is called in the thread that did it, perhaps by several at the same moment. It is quick (microseconds),
   never waits, and never raises: the transactions wait for it.
3. What is of interest only when somebody asks is not told here: `status` says it.

Seconds that a thing began at are by the monotonic clock of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "NOBODY",
    "Checkpointed",
    "Delivered",
    "Fault",
    "Lap",
    "Observer",
    "Requested",
    "Several",
    "Transacted",
    "Written",
]


class Lap(NamedTuple):
    """One phase of a transaction: `read`, `bind`, `compute`, `commit` or `replay`."""

    phase: str
    began_s: float
    took_s: float


class Written(NamedTuple):
    """What a transaction changed in a collection, as it is stored."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Transacted:
    """A transaction is in all collections, and in the state of this process."""

    time: int
    how: str
    """`committed` by this process; by a `peer`, and taken after it; or `replayed` after a start."""
    laps: tuple[Lap, ...]
    """In their order; a phase may come several times."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Rows that each source gave."""
    collections: Mapping[str, Written] = field(default_factory=dict)

    @property
    def began_s(self) -> float:
        return self.laps[0].began_s if self.laps else 0.0

    @property
    def took_s(self) -> float:
        return self.laps[-1].began_s + self.laps[-1].took_s - self.laps[0].began_s if self.laps else 0.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """A sink has a transaction."""

    sink: str
    time: int
    rows: int
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Checkpointed:
    number: int
    time: int
    files: int
    bytes: int
    """Of all files that it names, most of which others name, too."""
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something failed, and is told each time it does: most is tried again by itself."""

    part: str
    """What failed: `transaction`, `source`, `sink`, `view`, `checkpoint` or `upkeep`."""
    name: str
    """Which of them; empty if there is one only."""
    error_code: str
    laps: tuple[Lap, ...] = ()
    """Of a transaction, what it came to."""
    time: int | None = None


@dataclass(frozen=True, slots=True)
class Requested:
    """A request by HTTP was answered."""

    method: str
    route: str
    """As it is declared, `/v1/tables/{table}/rows`; `other` if there is none."""
    code: int
    began_s: float
    took_s: float
    kind: str = ""
    """Of a request for a shape: `snapshot`, `log`, `live` or `stream`. The last two wait, as they should."""
    traceparent: str = ""
    """The trace that it belongs to, if it names one."""


class Observer:
    """Does nothing: whoever observes overrides what it wants to know."""

    def transacted(self, made: Transacted) -> None: ...

    def delivered(self, made: Delivered) -> None: ...

    def checkpointed(self, made: Checkpointed) -> None: ...

    def stored(self, call: str, took_s: float, size: int, error_code: str) -> None:
        """A storage call, `blob.get` or the like; with an `error_code`, it failed. There are many: no object for it."""

    def failed(self, fault: Fault) -> None: ...

    def requested(self, made: Requested) -> None: ...


NOBODY = Observer()


class Several(Observer):
    """All of them, in their order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = tuple(observers)

    def transacted(self, made: Transacted) -> None:
        for one in self._all:
            one.transacted(made)

    def delivered(self, made: Delivered) -> None:
        for one in self._all:
            one.delivered(made)

    def checkpointed(self, made: Checkpointed) -> None:
        for one in self._all:
            one.checkpointed(made)

    def stored(self, call: str, took_s: float, size: int, error_code: str) -> None:
        for one in self._all:
            one.stored(call, took_s, size, error_code)

    def failed(self, fault: Fault) -> None:
        for one in self._all:
            one.failed(fault)

    def requested(self, made: Requested) -> None:
        for one in self._all:
            one.requested(made)
