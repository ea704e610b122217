"""Writes the log of a command to standard error: as text for people, or as JSON lines for programs.

1. The log never goes to standard output, which holds only the command's result.
2. The default level is warning for text, and information for JSON, which includes the log of libraries.
3. A new command in the same process replaces the handler of the previous one, so that no line is logged twice.
"""

from __future__ import annotations

import enum
import logging
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from evertide.logs import ROOT, JsonLines, line_of

__all__ = ["LogFormat", "LogLevel", "LogOptions", "log_to"]


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogOptions:
    form: LogFormat = LogFormat.TEXT
    level: LogLevel | None = None
    pipeline: str = ""
    """The root of the pipeline's storage."""

    @property
    def number(self) -> int:
        chosen = self.level or (LogLevel.INFO if self.form is LogFormat.JSON else LogLevel.WARNING)
        return logging.getLevelNamesMapping()[chosen.value.upper()]


class _TextLines(logging.Handler):
    def __init__(self, console: Console, level: int) -> None:
        super().__init__(level)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        line = line_of(record)
        number = "" if line.transaction is None else f" (transaction {line.transaction})"
        colour = "yellow" if record.levelno >= logging.WARNING else "dim"
        self._console.print(Text(f"evertide: {line.level}: {line.message}{number}", colour))


class _JsonLines(logging.Handler):
    def __init__(self, options: LogOptions) -> None:
        super().__init__(options.number)
        self.setFormatter(JsonLines(options.pipeline))

    def emit(self, record: logging.LogRecord) -> None:
        """Write each line at once, so that lines of several threads do not mix."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # standard error is closed
            self.handleError(record)


def log_to(console: Console, options: LogOptions) -> None:
    """Silences py4j, whose messages after an interrupt do not help."""
    is_json = options.form is LogFormat.JSON
    everything, ours = logging.getLogger(), logging.getLogger(ROOT)
    for log in (everything, ours):
        log.handlers = [each for each in log.handlers if not isinstance(each, _TextLines | _JsonLines)]
    (everything if is_json else ours).addHandler(
        _JsonLines(options) if is_json else _TextLines(console, options.number)
    )
    ours.setLevel(min(options.number, logging.WARNING))
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
