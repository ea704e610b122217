"""`OutageLog`: logs a failure that retries repeat, such as that of a storage which does not answer.

1. A line is logged when the failure begins, when its reason changes, and, with the duration, when it ends.
2. The reason is the error's code and its `why`, without numbers: paths, durations and ports differ at every retry.
3. Whatever retries in the background logs its failures through this module: `OutageLog`, `OutageLogs` for work that has
   several names, `evertide.threads.failures` for work that `status` shows, or `is_same_reason` if the last error is
   stored elsewhere.
"""

from __future__ import annotations

import logging
import re

from evertide.errors import EvertideError
from evertide.runtime import Runtime

_NUMBERS = re.compile(r"\d+")


class OutageLog:
    """Used by one thread."""

    def __init__(self, logger: logging.Logger, what: str, runtime: Runtime) -> None:
        """`what` says what fails."""
        self._logger = logger
        self._what = what
        self._clock = runtime.monotonic_s
        self._since_s = 0.0
        self._error: EvertideError | None = None

    def note(self, error: EvertideError) -> bool:
        """Note that the work failed. Return whether that was logged."""
        known, self._error = self._error, error
        if known is None:
            self._since_s = self._clock()
        if known is not None and is_same_reason(known, error):
            return False
        self._logger.warning("%s: %s", self._what, error)
        return True

    def end(self) -> None:
        """Note that the work succeeded."""
        if self._error is not None:
            self._error = None
            self._logger.warning("recovered after %.1f s: %s", self._clock() - self._since_s, self._what)


class OutageLogs:
    """An `OutageLog` for each name. Used by one thread at a time."""

    def __init__(self, logger: logging.Logger, runtime: Runtime) -> None:
        self._logger = logger
        self._runtime = runtime
        self._logs: dict[str, OutageLog] = {}

    def note(self, what: str, error: EvertideError) -> bool:
        if what not in self._logs:
            self._logs[what] = OutageLog(self._logger, what, self._runtime)
        return self._logs[what].note(error)

    def end(self, what: str) -> None:
        if (known := self._logs.pop(what, None)) is not None:
            known.end()


def is_same_reason(one: EvertideError, other: EvertideError) -> bool:
    return _reason(one) == _reason(other)


def is_same_text(one: str, other: str) -> bool:
    """Whether two reasons differ at most in numbers."""
    return _NUMBERS.sub("", one) == _NUMBERS.sub("", other)


def _reason(error: EvertideError) -> tuple[str, str]:
    return error.error_code, _NUMBERS.sub("", str(error.facts.get("why", error.message)))
