"""Diverged state: its evidence for a bug report, and the backoff of its recomputation (X7).

State is a function of the tables' content (I1). State whose result differs from the record (I8), or that is
inconsistent, is discarded and recomputed from the tables:

1. If one view diverges, its whole cohort is discarded, as the views of a cohort share arrangements.
2. The evidence is stored in the file `evidence/<writer>-<id>.json` of the storage, which is never deleted.
3. In the leader, the views leave the generation as `hydrating`, and a backfill computes them into new shards. A
   follower recomputes them in place and compares them with their shards; if they differ, it retries after a wait.
4. If the rows by key of a table differ from what a peer committed, they are read again from the table's shard, and the
   views over the table are recomputed.
5. Each further recomputation within an hour waits twice as long as the one before (`RecomputationBackoff`).
6. A table that is not kept cannot be read again: the divergence of a view over it is an error (`Diverged`), as is a
   source that returns other rows than recorded (J4).
"""

from __future__ import annotations

import logging
import platform
from importlib.metadata import PackageNotFoundError, version

import msgspec

from evertide.errors import EvertideError, StateDiverged
from evertide.pipeline.definition import Definition
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.store.blob import Blob
from evertide.store.paths import evidence_key
from evertide.types import Generation

logger = logging.getLogger(__name__)

_WAIT_MAX_S = 600.0
_RESET_AFTER_S = 3600.0
_PACKAGES = ("evertide", "pyspark", "pyarrow")


class DivergenceEvidence(msgspec.Struct, frozen=True):
    """The facts for a bug report. It contains no rows."""

    views: tuple[str, ...]
    transaction: int
    why: str
    """With the expected and the found counts and digests."""
    found_at_s: float
    writer: str
    generation: Generation
    fingerprint: str
    versions: dict[str, str]
    state: tuple[str, ...]
    """The keys of the parts of the discarded state."""
    format: int = 1


def store_evidence(evidence: DivergenceEvidence, blob: Blob, runtime: Runtime) -> str:
    """Store the evidence and return its path; empty if that fails, which must not prevent the recomputation."""
    key = evidence_key(evidence.writer, runtime.new_id()[:8])
    data = msgspec.json.format(msgspec.json.encode(evidence))
    try:
        blob.put(key, data)
    except EvertideError as error:
        logger.warning("could not store the evidence of a divergence (%s): %s", error, data)
        return ""
    return blob.path(key)


def _read_versions() -> dict[str, str]:
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
    evidence = DivergenceEvidence(
        views=error.views,
        transaction=error.time,
        why=error.why,
        found_at_s=runtime.wall_s(),
        writer=writer,
        generation=definition.generation,
        fingerprint=definition.fingerprint,
        versions=_read_versions(),
        state=parts,
    )
    path = store_evidence(evidence, blob, runtime)
    why = f"{error.why}; evidence: {path}" if path else error.why
    return StateDiverged(views=error.views, time=error.time, why=why)


def list_divergences(definition: Definition) -> dict[str, Problem]:
    """By name, the problems of views whose state was discarded and is recomputed (X7)."""
    code, remedy = StateDiverged.error_code, StateDiverged.remedy
    return {
        name: Problem(ComponentState.WARNING, code, f"view {name!r}: {away.why}", remedy, away.since_s)
        for name, away in definition.find_diverged().items()
    }


class RecomputationBackoff:
    """The wait before the next try: none before the first, then waits that double, up to `_WAIT_MAX_S`."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._last_s = -_RESET_AFTER_S
        self._next_s = 0.0
        self.tries = 0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._next_s - now_s) if self.tries else 0.0

    def note_try(self, now_s: float) -> None:
        self.tries = self.tries + 1 if now_s - self._last_s < _RESET_AFTER_S else 1
        self._last_s = now_s
        self._next_s = now_s + min(self._first_s * 2 ** (self.tries - 1), _WAIT_MAX_S)
