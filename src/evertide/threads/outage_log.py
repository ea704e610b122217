"""`OutageLog`: logs a failure that retries repeat, such as that of a storage which does not answer.

1. A line is logged when the failure begins, when its reason changes, and, with the duration, when it ends.
2. The reason is the error's code and its `why`, without numbers: paths, durations and ports differ at every retry.
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

    def note(self, error: EvertideError) -> None:
        """Note that the work failed."""
        known, self._error = self._error, error
        if known is None:
            self._since_s = self._clock()
        if known is None or not is_same_reason(known, error):
            self._logger.warning("%s: %s", self._what, error)

    def end(self) -> None:
        """Note that the work succeeded."""
        if self._error is not None:
            self._error = None
            self._logger.warning("recovered after %.1f s: %s", self._clock() - self._since_s, self._what)


def is_same_reason(one: EvertideError, other: EvertideError) -> bool:
    return _reason(one) == _reason(other)


def _reason(error: EvertideError) -> tuple[str, str]:
    return error.error_code, _NUMBERS.sub("", str(error.facts.get("why", error.message)))
