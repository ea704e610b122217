"""`LiveDisplay`: shows the progress of a running pipeline, redrawn on a terminal, otherwise line by line."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from evertide.cli.output.output import Output
from evertide.errors import EvertideError, OutcomeUnknown, TimeCompacted, Unavailable
from evertide.formats import format_count, format_state
from evertide.journal.journal import Journal
from evertide.pipeline.status.report import format_lag, list_problem_lines
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline
    from evertide.pipeline.status.status import Status

logger = logging.getLogger(__name__)

_WINDOW_S = 10.0
_STATUS_EVERY_S = 1.0
_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class FinishedTransaction:
    time: int
    rows: int
    took_s: float
    at_s: float
    """When it was committed, by the monotonic clock."""


class LiveDisplay:
    """The thread that runs the pipeline calls `record`; the thread that draws calls `render`."""

    is_transient = True
    """Whether the display vanishes at the end, because a summary follows."""

    def __init__(self, pipeline: Pipeline, output: Output, *, is_quiet: bool = False) -> None:
        self.pipeline = pipeline
        self.finished: deque[FinishedTransaction] = deque(maxlen=1000)
        self.transactions = 0
        self.rows = 0
        self._output = output
        self._is_quiet = is_quiet
        self._runtime = SystemRuntime()
        storage = pipeline.storage
        self._journal = Journal(storage.blob, storage.meta, runtime=self._runtime, settings=pipeline.settings)
        self._began_s = self._runtime.monotonic_s()
        self._status: tuple[float, Status] | None = None
        self._printed_s = self._began_s

    def record(self, time: int, took_s: float) -> None:
        """The callback of `Pipeline.run` after each transaction."""
        try:
            committed = self._journal.read_outcome(time)
        except TimeCompacted:  # a follower that fell behind continued from a checkpoint after this time
            return
        except (OutcomeUnknown, Unavailable) as error:  # the pipeline waits until storage answers, and reports that
            logger.warning("transaction %d is committed, but its rows cannot be counted: %s", time, error)
            return
        rows = sum(content.rows for content in committed.sources.values()) if committed else 0
        one = FinishedTransaction(time, rows, took_s, self._runtime.monotonic_s())
        self.finished.append(one)
        self.transactions += 1
        self.rows += rows
        if self._output.is_json and not self._is_quiet:
            self._output.write_line({"event": "transaction", "time": time, "rows": rows, "took_s": round(took_s, 6)})
        elif not self._output.is_live and not self._is_quiet and one.at_s - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = one.at_s
            self._output.print_message(self.summary())

    @property
    def rows_per_s(self) -> float:
        """Input rows per second over the last `_WINDOW_S`."""
        now_s = self._runtime.monotonic_s()
        recent = [one for one in list(self.finished) if one.at_s > now_s - _WINDOW_S]
        return sum(one.rows for one in recent) / min(_WINDOW_S, max(now_s - self._began_s, 0.001))

    @property
    def took_s(self) -> float:
        """The median duration of the last 20 transactions."""
        took = sorted(one.took_s for one in list(self.finished)[-20:])
        return took[len(took) // 2] if took else 0.0

    def status(self) -> Status:
        """The status, at most `_STATUS_EVERY_S` old."""
        now_s = self._runtime.monotonic_s()
        if self._status is None or now_s - self._status[0] >= _STATUS_EVERY_S:
            self._status = (now_s, self.pipeline.status())
        return self._status[1]

    def summary(self) -> Text:
        status, time = self.status(), self.pipeline.time
        waiting = status.bound - time
        bound = f", {waiting} waiting" if waiting > 0 else ""
        made = "no transactions in this process"
        if self.transactions:
            made = f"{format_count(self.rows, 'row')} in {format_count(self.transactions, 'transaction')}"
            made = f"{made}, {self.took_s:.3f} s each"
        numbers = f"  time {time}{bound}  {self.rows_per_s:,.0f} rows/s  {made}"
        return Text.assemble(format_state(status.state), numbers)

    def list_problems(self) -> Iterator[Text]:
        status = self.status()
        for problem in status.problems:
            yield Text(f"{problem.state}: {problem.why}", "red")
        for source in status.sources:
            warnings = tuple(each for each in source.problems if each.why not in {one.why for one in status.problems})
            yield from list_problem_lines(source.name, warnings)
        for one in status.collections:
            if one.state == ComponentState.FAILED:
                yield Text(f"view {one.name} failed: {one.why}", "red")

    def list_lags(self) -> Iterator[Text]:
        lags = {source.name: source.lag for source in self.status().sources if source.lag is not None}
        texts = [f"{name} {format_lag(lag)}" for name, lag in lags.items() if any(astuple(lag))]
        if texts:
            yield Text(f"  behind: {'; '.join(texts)}", "yellow")

    def panels(self) -> Iterator[Any]:
        """The lines of the display, from top to bottom."""
        yield self.summary()
        yield from self.list_lags()
        yield from self.list_problems()

    def render(self) -> Any:
        """The content that `Live` draws; an error is shown, and does not end the drawing."""
        try:
            return Group(*self.panels())
        except EvertideError as error:
            return Text(str(error), "red")

    @contextmanager
    def draw(self) -> Iterator[None]:
        if not self._output.is_live or self._is_quiet:
            yield
            return
        live = Live(
            get_renderable=self.render, console=self._output.out, refresh_per_second=4, transient=self.is_transient
        )
        with live, self._output.print_errors_above():
            yield
