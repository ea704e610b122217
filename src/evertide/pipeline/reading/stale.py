"""Says that rows are those of an earlier transaction, because their view failed or is recomputed.

1. Each such view has one sentence, which is the same for all kinds of readers.
2. A reader that reads once warns at each read. A reader that follows a view warns when the sentence changes.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from evertide.pipeline.definition import ViewRecord, is_redefined


class StaleViewWarning(UserWarning):
    """Rows of a view were read that stand at an earlier transaction than the other collections."""


def describe_stale(name: str, view: ViewRecord, time: int) -> str:
    """The sentence about a view that is read as of `time`; empty for one that is current, or is not read at all."""
    if view.away is None or is_redefined(view):
        return ""
    return f"view {name!r} is {view.away.state}, and its content is that of transaction {time}"


def make_stale_header(sentences: Iterable[str]) -> str:
    return "; ".join(sentences).encode("ascii", "backslashreplace").decode()


def read_stale_header(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("; ")))


def make_warning_text(sentence: str) -> str:
    return f"{sentence}; its status says why"


def warn_of_stale(sentences: Iterable[str]) -> None:
    """Warn at the line outside of Evertide that reads: by default, Python shows a warning once for each line."""
    for sentence in sentences:
        warnings.warn(make_warning_text(sentence), StaleViewWarning, stacklevel=_count_own_callers())


def _count_own_callers() -> int:
    """How far up the first caller is that is not a function of Evertide; 1 is the caller of this."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("evertide."):
        frame, count = frame.f_back, count + 1
    return count


def ignore_stale_views() -> AbstractContextManager[object]:
    """For a caller that reports the sentences itself."""
    return warnings.catch_warnings(action="ignore", category=StaleViewWarning)


class StaleNews:
    """What a reader that follows a view was last told of it."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] = ()

    def find_news(self, sentences: Sequence[str]) -> Sequence[str]:
        """The sentences, unless they are those of the last call."""
        known, self._known = self._known, tuple(sentences)
        return () if known == self._known else sentences
