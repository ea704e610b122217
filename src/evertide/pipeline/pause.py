"""`Pause`: whether new transactions are paused, and since when.

A pause applies to one process, and ends with it. The transaction under way is completed.
"""

from __future__ import annotations

from evertide.errors import NotAllowedNow
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime


class Pause:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since_s: float | None = None

    @property
    def is_on(self) -> bool:
        return self._since_s is not None

    def begin(self) -> None:
        if self._since_s is None:
            self._since_s = self._runtime.wall_s()

    def end(self) -> None:
        self._since_s = None

    def check(self) -> None:
        if self.is_on:
            why = "the pipeline is paused; resume it with `evertide resume`, then retry"
            raise NotAllowedNow(where="commit", why=why)

    def problem(self, running_since_s: float) -> Problem:
        """The state, `running` or `paused`, of a pipeline without other problems."""
        if self._since_s is None:
            return Problem(ComponentState.RUNNING, "", "", "", running_since_s)
        remedy = "Resume the pipeline: `evertide --url URL resume`, or POST /v1/resume."
        return Problem(ComponentState.PAUSED, "", "a client paused the pipeline", remedy, self._since_s)
