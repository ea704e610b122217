"""`Problem`: a condition that needs attention, as reported in `status` and to other processes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem"]


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
