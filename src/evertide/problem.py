"""`Problem`: what needs attention, as `status` shows it; `ComponentState`: the states of components."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from evertide.errors import EvertideError


class OpenStrEnum(StrEnum):
    """For fields of records: a text of a later version is a value of its own, which no member equals."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        later = str.__new__(cls, value)
        later.__dict__.update(_name_=value, _value_=value)
        return later


class ComponentState(OpenStrEnum):
    """The state of a pipeline, view, source, sink or replica (`evertide.pipeline.status.status`)."""

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
    NOT_REPORTED = ""
    """Of a source or sink, until the process that runs the pipeline has reported it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, since when, why, and what to do. Contains no secrets."""

    state: ComponentState
    """The resulting state of the affected component; `warning` if it continues to work."""
    error_code: str
    why: str
    remedy: str
    since_s: float
    wait_s: float | None = None
    """Seconds until the next retry; None if there is none, or it is unknown."""

    @classmethod
    def from_error(
        cls, state: ComponentState, error: EvertideError, since_s: float, why: str = "", wait_s: float | None = None
    ) -> Problem:
        """`why` replaces the error's message."""
        return cls(state, error.error_code, why or error.message, error.remedy, since_s, wait_s)
