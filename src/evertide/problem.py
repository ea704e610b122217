"""`Problem`: something that is wrong, as every room tells of it: in `status`, and to other processes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: since when, why, and what to do. There is no secret in it."""

    state: str
    """What it makes of whatever it is a problem of; `warning` if that goes on as before."""
    error_code: str
    why: str
    remedy: str
    since_s: float
    wait_s: float | None = None
    """How long it waits until it tries again; None if it does not, or nobody knows."""
