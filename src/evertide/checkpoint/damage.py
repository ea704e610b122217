"""`KnownDamage`: the checkpoints that this process found damaged.

It is in memory only: the next process that restores finds the damage again. A damaged checkpoint stays in the catalog,
and so does every intact one, until the next publication drops it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from evertide.checkpoint.records import CatalogEntry
from evertide.errors import EvertideError
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime

__all__ = ["DamagedCheckpoint", "KnownDamage"]

_REMEDY = "Check the disk or bucket that holds the storage. The pipeline replaces the checkpoint by itself."


@dataclass(frozen=True, slots=True)
class DamagedCheckpoint:
    entry: CatalogEntry
    error: EvertideError
    since_s: float
    """When this process found it."""
    is_replaced: bool = False
    """Whether it has left the catalog, replaced by a newer checkpoint."""

    def problem(self) -> Problem:
        named = f"checkpoint {self.entry.number} at time {self.entry.time} is damaged and is not used"
        now = "a newer one has replaced it" if self.is_replaced else "a new one is due"
        why = f"{named}; {now}: {self.error.message}"
        return Problem(ComponentState.WARNING, "checkpoint_damaged", why, _REMEDY, self.since_s)


class KnownDamage:
    """Safe to share between threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._found: dict[int, DamagedCheckpoint] = {}

    def add(self, entry: CatalogEntry, error: EvertideError) -> None:
        with self._lock:
            if entry.number not in self._found:
                self._found[entry.number] = DamagedCheckpoint(entry, error, self._runtime.wall_s())

    def list_catalogued(self) -> frozenset[int]:
        """The numbers of those that no newer checkpoint has replaced."""
        with self._lock:
            return frozenset(number for number, one in self._found.items() if not one.is_replaced)

    def replace(self, catalog: tuple[CatalogEntry, ...]) -> None:
        """Mark those that are no longer in the catalog."""
        numbers = {entry.number for entry in catalog}
        with self._lock:
            for number, one in self._found.items():
                if number not in numbers:
                    self._found[number] = DamagedCheckpoint(one.entry, one.error, one.since_s, is_replaced=True)

    def problems(self) -> list[Problem]:
        with self._lock:
            return [one.problem() for _, one in sorted(self._found.items())]
