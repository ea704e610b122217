"""Log records as structured lines: formatted as JSON, kept in a ring for the API, and free of secrets.

1. A record has `time` (UTC), `level`, `logger` and `message`; if known, also `pipeline` (the root of its storage),
   `transaction` (the one that the thread works on), `error_code` (of the reported error) and `trace`. Keys are stable:
   new ones may be added, none changes its meaning.
2. Secrets that this process was given are replaced before a record leaves this module (`evertide.secrets.hide`).
3. A record is one line, even if the message has several.
4. A failure to format a record never affects the code that logs it.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

from evertide.errors import EvertideError
from evertide.json_values import join_lines
from evertide.secrets import hide

ROOT = "evertide"
"""The parent of all our loggers."""

TRANSACTION: ContextVar[int | None] = ContextVar("evertide_transaction", default=None)
"""The transaction that this thread computes or delivers; set by that code."""

_LINES_MAX = 2000
_MESSAGE_MAX = 10_000


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of the log. `time` is UTC; empty fields are omitted."""

    time: str
    level: str
    logger: str
    message: str
    pipeline: str = ""
    transaction: int | None = None
    error_code: str = ""
    trace: str = ""
    """The stack trace of an unexpected error."""


def make_line(record: logging.LogRecord, pipeline: str = "") -> LogLine:
    error = _error_of(record)
    trace = ""
    if record.exc_info and not isinstance(record.exc_info[1], EvertideError):
        trace = logging.Formatter().formatException(record.exc_info)
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return LogLine(
        time=moment.replace("+00:00", "Z"),
        level=record.levelname.lower(),
        logger=record.name,
        message=join_lines(hide(_message(record)))[:_MESSAGE_MAX],
        pipeline=pipeline,
        transaction=TRANSACTION.get(),
        error_code=error.error_code if error is not None else "",
        trace=hide(trace),
    )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a library's wrong format string must not stop it
        return str(record.msg)


def _error_of(record: logging.LogRecord) -> EvertideError | None:
    args = record.args.values() if isinstance(record.args, dict) else record.args or ()
    error = next((each for each in args if isinstance(each, EvertideError)), None)
    if error is None and record.exc_info and isinstance(record.exc_info[1], EvertideError):
        return record.exc_info[1]
    return error


class JsonFormatter(logging.Formatter):
    """Formats each record as a line with a JSON object."""

    def __init__(self, pipeline: str = "") -> None:
        super().__init__()
        self._pipeline = pipeline

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(msgspec.to_builtins(make_line(record, self._pipeline)), ensure_ascii=False)


class Ring(logging.Handler):
    """Keeps the last lines in memory, for the API. As a context manager, it is attached to `ROOT`."""

    def __init__(self, pipeline: str = "", lines_max: int = _LINES_MAX) -> None:
        super().__init__(logging.INFO)
        self._pipeline = pipeline
        self._lines: deque[LogLine] = deque(maxlen=lines_max)
        self._level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(make_line(record, self._pipeline))

    def lines(self, limit: int = 100, level: str = "info") -> list[LogLine]:
        """The last lines of at least a level, newest first."""
        least = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        levels = logging.getLevelNamesMapping()
        matching = (line for line in reversed(self._lines.copy()) if levels.get(line.level.upper(), 0) >= least)
        return [line for _, line in zip(range(limit), matching, strict=False)]

    def __enter__(self) -> Ring:
        log = logging.getLogger(ROOT)
        self._level_before = log.level
        log.addHandler(self)
        if log.getEffectiveLevel() > logging.INFO:  # otherwise only warnings would reach it
            log.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger(ROOT)
        log.removeHandler(self)
        log.setLevel(self._level_before)
