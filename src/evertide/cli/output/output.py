"""`Output`: tables and sentences for people, JSON for programs, errors for both.

1. With `--json`, standard output holds only one JSON document, or JSON lines.
2. An error is one line on standard error: what happened, the facts, the remedy. An error at a position of a script or
   query also shows that line (`render_error`). With `--json` an error is one JSON object
   there: `error_code`, `message`, `remedy`, and the facts. The exit code is the error's.
3. Progress bars, warnings and Spark's output go to standard error.
4. An `EvertideError` has no stack trace. Ctrl-C is not an error: the command reports it and exits with 130.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, ParamSpec, TypeVar, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from evertide.cli.output.logs import LogOptions, configure_logging
from evertide.errors import EvertideError, InvalidInput
from evertide.formats import format_bytes
from evertide.json_values import error_to_json, join_lines, to_json_value
from evertide.plan.script.error_list import ScriptErrors
from evertide.source_text import QUERY, is_position, mark_line
from evertide.tables import TextTable

P = ParamSpec("P")
T = TypeVar("T")

_INTERRUPTED = 130
_WIDE = 1000


class Output:
    def __init__(self, *, is_json: bool, logs: LogOptions | None = None) -> None:
        self.is_json = is_json
        # Output to a pipe is not wrapped at the width of a terminal.
        self.out = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)
        configure_logging(self.err, logs or LogOptions())

    @property
    def is_live(self) -> bool:
        """Whether the output is a terminal, which can be redrawn."""
        return self.out.is_terminal and not self.is_json

    @contextmanager
    def print_errors_above(self) -> Iterator[None]:
        """While a display is redrawn on the same terminal, print warnings and errors above it instead of into it."""
        if not sys.stderr.isatty():
            yield
            return
        self.err.file = cast("IO[str]", _LinesAbove(self.out))
        try:
            yield
        finally:
            self.err.file = sys.stderr

    def write_document(self, value: Any) -> None:
        """Print the only JSON document of a command."""
        self._write(json.dumps(to_json_value(value), indent=2, ensure_ascii=False))

    def report(self, value: Any, text: str) -> None:
        """Print the result of a command: `value` with `--json`, otherwise `text`."""
        if self.is_json:
            self.write_document(value)
        else:
            self.print_message(Text(text))

    def write_line(self, value: Any) -> None:
        """Print one of several JSON lines."""
        self._write(json.dumps(to_json_value(value), ensure_ascii=False))

    def write_text(self, text: str) -> None:
        """Print the text without interpreting markup."""
        self._write(text.rstrip("\n"))

    def warn(self, sentence: str) -> None:
        self.err.print(Text(f"evertide: {sentence}", "yellow"))

    def print_message(self, *what: Any) -> None:
        """Print for people; nothing with `--json`."""
        if not self.is_json:
            parts = [one.to_rich() if isinstance(one, TextTable) else one for one in what]
            # Only the terminal breaks a long line of text, so that a copied path is whole.
            self.out.print(*parts, soft_wrap=all(isinstance(one, Text) for one in parts))

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()  # so that the reader of a stream gets each line at once


class _LinesAbove:
    """A file whose lines a console prints above its display."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """A line is printed when it is complete."""

    def isatty(self) -> bool:
        return True


def report_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command so that it reports errors by the rules above."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        is_json = bool(kwargs.get("is_json"))
        try:
            return command(*args, **kwargs)
        except EvertideError as error:
            report_error(error, is_json=is_json, texts={QUERY: str(kwargs.get("text", ""))})
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            sys.stderr.write("evertide: interrupted\n")
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader closed the pipe (`evertide subscribe ... | head`). Python would fail again at its exit.
            sys.stdout = None
            raise typer.Exit(0) from None

    return run


def report_error(error: EvertideError, *, is_json: bool, texts: Mapping[str, str] | None = None) -> None:
    text = json.dumps(error_to_dict(error), ensure_ascii=False) if is_json else render_error(error, texts)
    sys.stderr.write(f"{text}\n")


def error_to_dict(error: EvertideError) -> dict[str, Any]:
    return {**error_to_json(error), "exit_code": error.exit_code}


class Bars:
    """Progress bars by the name of the work, each added at its first report. Shown on a terminal only."""

    def __init__(self, output: Output) -> None:
        columns = (TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.fields[count]}"))
        self._progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=output.err,
            disable=output.is_json or not output.err.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """The `progress` callback of `Pipeline.open`."""
        self._show(what, done, total, f"{done:,} of {total:,}")

    def show_bytes(self, what: str, done: int, total: int) -> None:
        self._show(what, done, total, f"{format_bytes(done)} of {format_bytes(total)}")

    def _show(self, what: str, done: int, total: int, count: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, count=count)
        self._progress.update(self._tasks[what], completed=done, total=total, count=count)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Hide the bars while the command asks the user."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    @contextmanager
    def show_work(self, what: str) -> Iterator[None]:
        """Show a bar for work of unknown size."""
        task = self._progress.add_task(what, total=None, count="")
        try:
            yield
        finally:
            self._progress.remove_task(task)


def render_error(error: EvertideError, texts: Mapping[str, str] | None = None) -> str:
    """An error for people. An error in a script or query shows the line, and marks the place in it.

    `texts` are scripts and queries that are not files, by the name that positions have.

        shop.sql:3:10: no column 'custmer' in 'orders'; did you mean 'customer'?
          3 | SELECT   custmer, sum(amount) AS amount
            |          ^
    """
    errors = (error.errors if isinstance(error, ScriptErrors) else ()) or (error,)
    blocks = [_render_one(each, texts or {}) for each in errors]
    if not blocks[0]:
        return f"evertide: {join_lines(str(error))}"
    count = f"{len(errors)} errors. " if len(errors) > 1 else ""
    lines = [line for each, block in zip(errors, blocks, strict=True) for line in block or [join_lines(each.message)]]
    return "\n".join([*lines, f"evertide: {count}{error.remedy}"])


def _render_one(error: EvertideError, texts: Mapping[str, str]) -> list[str]:
    """The message and the marked line; nothing if the error is not at a position."""
    if not isinstance(error, InvalidInput) or not is_position(error.where):
        return []
    return [join_lines(error.message), *mark_line(error.where, texts)]
