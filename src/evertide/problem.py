"""`Problem`: what needs attention, as `status` shows it; `ComponentState`: the states of components."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from evertide.errors import EvertideError

__all__ = ["ComponentState", "Problem"]


class ComponentState(StrEnum):
    """The state of a pipeline, view, source, sink or replica (`evertide.pipeline.status.status`).

    Records and statuses have it as a `str`, so that a reader accepts the states of a later version.
    """

    RUNNING = "running"
    REPLAYING = "replaying"
    HYDRATING = "hydrating"
    WAITING = "waiting"
    LAGGING = "lagging"
    RECONNECTING = "reconnecting"
    STALLED = "stalled"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    DIVERGED = "diverged"
    FROZEN = "frozen"
    UNDECLARED = "undeclared"
    WARNING = "warning"
    """Of a problem that stops nothing."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, since when, why, and what to do. Contains no secrets."""

    state: str
    """The resulting state of the affected component; `warning` if it continues to work."""
    error_code: str
    why: str
    remedy: str
    since_s: float
    wait_s: float | None = None
    """Seconds until the next retry; None if there is none, or it is unknown."""

    @classmethod
    def from_error(
        cls, state: str, error: EvertideError, since_s: float, why: str = "", wait_s: float | None = None
    ) -> Problem:
        """`why` replaces the error's message."""
        return cls(state, error.error_code, why or error.message, error.remedy, since_s, wait_s)
