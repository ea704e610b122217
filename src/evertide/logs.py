"""Logs as records: what a line of the log is, as JSON, in a ring for those who ask, and without secrets.

1. A record has `time` (UTC), `level`, `logger`, `message`; and where there is one `pipeline` (the root of its storage),
   `transaction` (the number of the one under way in that thread), `error_code` (of the error that is told of), `trace`.
   Keys are stable: new ones may come, none changes its meaning.
2. Whatever this process was given as a secret is replaced before anybody sees the record (`evertide.secrets.hide`).
3. A line is one line, also of a message that has several.
4. Writing a log never stops what is logged of.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

from evertide.errors import EvertideError
from evertide.json_values import one_line
from evertide.secrets import hide

__all__ = ["ROOT", "TRANSACTION", "JsonLines", "LogLine", "Ring", "line_of"]

ROOT = "evertide"
"""The logger above all of ours."""

TRANSACTION: ContextVar[int | None] = ContextVar("evertide_transaction", default=None)
"""The transaction that this thread is at; set by whoever makes or delivers it."""

_LINES_MAX = 2000
_MESSAGE_MAX = 10_000


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of the log. `time` is UTC; what there is none of is not there."""

    time: str
    level: str
    logger: str
    message: str
    pipeline: str = ""
    transaction: int | None = None
    error_code: str = ""
    trace: str = ""
    """The stack, if something unexpected happened."""


def line_of(record: logging.LogRecord, pipeline: str = "") -> LogLine:
    error = _error_of(record)
    trace = ""
    if record.exc_info and not isinstance(record.exc_info[1], EvertideError):
        trace = logging.Formatter().formatException(record.exc_info)
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return LogLine(
        time=moment.replace("+00:00", "Z"),
        level=record.levelname.lower(),
        logger=record.name,
        message=one_line(hide(_message(record)))[:_MESSAGE_MAX],
        pipeline=pipeline,
        transaction=TRANSACTION.get(),
        error_code=error.error_code if error is not None else "",
        trace=hide(trace),
    )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a wrong format of a library's line must not end what it tells of
        return str(record.msg)


def _error_of(record: logging.LogRecord) -> EvertideError | None:
    told = record.args.values() if isinstance(record.args, dict) else record.args or ()
    found = next((each for each in told if isinstance(each, EvertideError)), None)
    if found is None and record.exc_info and isinstance(record.exc_info[1], EvertideError):
        return record.exc_info[1]
    return found


class JsonLines(logging.Formatter):
    """A JSON object in each line."""

    def __init__(self, pipeline: str = "") -> None:
        super().__init__()
        self._pipeline = pipeline

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(msgspec.to_builtins(line_of(record, self._pipeline)), ensure_ascii=False)


class Ring(logging.Handler):
    """The last lines, in memory: for whoever asks what happened. As a context manager it listens to all of ours."""

    def __init__(self, pipeline: str = "", lines_max: int = _LINES_MAX) -> None:
        super().__init__(logging.INFO)
        self._pipeline = pipeline
        self._lines: deque[LogLine] = deque(maxlen=lines_max)
        self._level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(line_of(record, self._pipeline))

    def lines(self, limit: int = 100, level: str = "info") -> list[LogLine]:
        """The last ones of at least a level, the newest first."""
        least = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        levels = logging.getLevelNamesMapping()
        found = (line for line in reversed(self._lines.copy()) if levels.get(line.level.upper(), 0) >= least)
        return [line for _, line in zip(range(limit), found, strict=False)]

    def __enter__(self) -> Ring:
        log = logging.getLogger(ROOT)
        self._level_before = log.level
        log.addHandler(self)
        if log.getEffectiveLevel() > logging.INFO:  # or nothing below a warning would reach it
            log.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger(ROOT)
        log.removeHandler(self)
        log.setLevel(self._level_before)
