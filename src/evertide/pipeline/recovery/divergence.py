"""State that is not what it should be: what is kept of it for a bug report, and how often it is computed again (X7).

What the tables hold is a fact, and state is a function of it (I1). So state of which a step comes to something else
than what is recorded (I8), or which contradicts itself, is discarded and computed again from the tables:

1. A cohort of which one view diverges is discarded as a whole, as its views share arrangements.
2. The evidence is stored as a file of its own in the storage, `evidence/<writer>-<id>.json`, which is never deleted.
3. In the process that leads, the views leave the generation as `hydrating`, and a backfill computes them into new
   shards. A process that follows computes them in place, and they must come to what the shards hold.
   So does one that opens: what it cannot compute, or computes otherwise, keeps it waiting, and not its peers.
4. Rows by key of a table that are not what a peer committed are read again from the tables' shards, and the views over
   the table are computed again.
5. Each further time within an hour waits twice as long as the one before (`Backoff`).

A table that is not kept cannot be read again: a view over one stays an error (`Diverged`), as does a source that gives
other rows than those recorded (J4).
"""

from __future__ import annotations

import logging
import platform
from importlib.metadata import PackageNotFoundError, version

import msgspec

from evertide.errors import EvertideError, StateDiverged
from evertide.pipeline.definition import Definition
from evertide.runtime import Runtime
from evertide.store.blob import Blob
from evertide.store.paths import evidence_key
from evertide.types import Generation

__all__ = ["Backoff", "Evidence", "add_evidence", "store_evidence"]

logger = logging.getLogger(__name__)

_MAX_S = 600.0
_QUIET_S = 3600.0
_PACKAGES = ("evertide", "pyspark", "pyarrow")


class Evidence(msgspec.Struct, frozen=True):
    """What a bug report needs. There are no rows in it."""

    views: tuple[str, ...]
    transaction: int
    why: str
    """With the count and the digest that were expected, and those that were found."""
    found_at_s: float
    writer: str
    generation: Generation
    fingerprint: str
    versions: dict[str, str]
    state: tuple[str, ...]
    """The names of the files that the state consisted of."""
    format: int = 1


def store_evidence(evidence: Evidence, blob: Blob, runtime: Runtime) -> str:
    """Where it is; empty if it could not be stored, which must not keep the views from being computed again."""
    key = evidence_key(evidence.writer, runtime.new_id()[:8])
    data = msgspec.json.format(msgspec.json.encode(evidence))
    try:
        blob.put(key, data)
    except EvertideError as error:
        logger.warning("the evidence of a divergence is only here, as it could not be stored (%s): %s", error, data)
        return ""
    return blob.path(key)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def add_evidence(  # noqa: PLR0917
    error: StateDiverged, definition: Definition, parts: tuple[str, ...], writer: str, blob: Blob, runtime: Runtime
) -> StateDiverged:
    """Store the evidence of an error; return the error with its path."""
    evidence = Evidence(
        views=error.views,
        transaction=error.time,
        why=error.why,
        found_at_s=runtime.wall_s(),
        writer=writer,
        generation=definition.generation,
        fingerprint=definition.fingerprint,
        versions=_versions(),
        state=parts,
    )
    path = store_evidence(evidence, blob, runtime)
    why = f"{error.why}; evidence: {path}" if path else error.why
    return StateDiverged(views=error.views, time=error.time, why=why)


class Backoff:
    """When something may be tried again: at once the first time, then after waits that double."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._last_s = -_QUIET_S
        self._next_s = 0.0
        self.tries = 0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._next_s - now_s) if self.tries else 0.0

    def note_try(self, now_s: float) -> None:
        self.tries = self.tries + 1 if now_s - self._last_s < _QUIET_S else 1
        self._last_s = now_s
        self._next_s = now_s + min(self._first_s * 2 ** (self.tries - 1), _MAX_S)
