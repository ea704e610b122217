"""Writes the log of a command to standard error: as text for people, or as JSON lines for programs.

1. The log never goes to standard output, which holds only the command's result.
2. The default level is warning for text, and information for JSON. Both include the log of libraries, except py4j: it
   logs a trace for every call that an interrupt or the end of Spark cuts off, and the caller reports that.
3. A new command in the same process replaces the handler of the previous one, so that no line is logged twice.
"""

from __future__ import annotations

import enum
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evertide.logs import ROOT, JsonFormatter, make_line


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
    def level_number(self) -> int:
        chosen = self.level or (LogLevel.INFO if self.form is LogFormat.JSON else LogLevel.WARNING)
        return logging.getLevelNamesMapping()[chosen.value.upper()]


class _TextHandler(logging.Handler):
    def __init__(self, console: Console, level: int) -> None:
        super().__init__(level)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        line = make_line(record)
        transaction = "" if line.transaction is None else f" (transaction {line.transaction})"
        colour = "yellow" if record.levelno >= logging.WARNING else "dim"
        self._console.print(Text(f"evertide: {line.level}: {line.message}{transaction}", colour))


class _JsonHandler(logging.Handler):
    def __init__(self, options: LogOptions) -> None:
        super().__init__(options.level_number)
        self.setFormatter(JsonFormatter(options.pipeline))

    def emit(self, record: logging.LogRecord) -> None:
        """Write each line at once, so that lines of several threads do not mix."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # standard error is closed
            self.handleError(record)


def configure_logging(console: Console, options: LogOptions) -> None:
    """Send the log to `console`, or as JSON to standard error."""
    is_json = options.form is LogFormat.JSON
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, _TextHandler | _JsonHandler)]
    root.addHandler(_JsonHandler(options) if is_json else _TextHandler(console, options.level_number))
    root.addFilter(_is_not_of_py4j)
    logging.getLogger(ROOT).setLevel(min(options.level_number, logging.WARNING))
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """For the root logger, which parts of py4j use directly."""
    return "py4j" not in Path(record.pathname).parts
