"""Reads what sources offer for the next transaction, acknowledges bound input, and reports each source's state.

Input that is not staged is read before it is bound, so that a source that cannot be read stalls alone. Staged input is
in Evertide's own storage, and may be larger than memory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from evertide.errors import EvertideError, SourceFailed
from evertide.journal.records import Bound, Fragment, Input, Staged
from evertide.observer import FailureEvent
from evertide.pipeline.definition import Definition
from evertide.pipeline.input.source_positions import read_positions
from evertide.pipeline.process_context import ProcessContext
from evertide.pipeline.records.source_record import SourceRecord
from evertide.problem import ComponentState, Problem
from evertide.sources.contract import HasGoal, Limit, MayWait, Monitored, Rows, Source, to_problem
from evertide.threads.outage_log import is_same_reason
from evertide.threads.steps import note_each_step

logger = logging.getLogger(__name__)


class InputReader:
    """Reads and acknowledges the input of all sources."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context
        self.stalled: dict[str, Problem] = {}
        """By source; the key "" has the problem that stops all sources."""
        self._errors: dict[str, EvertideError] = {}
        """The reason that was logged last, by source."""
        self._moving: set[str] = set(context.sources)
        """Sources that may have more: their last offer had input, or they have made none yet."""

    def read(
        self, definition: Definition, only: Collection[str] | None = None
    ) -> tuple[dict[str, Input], dict[str, list[Rows]]]:
        """The input for the journal, and the rows that were read. A source without input keeps its position.

        If `only` is given, only these sources make an offer; the leader reads the others.
        """
        sources, settings = self._context.sources, self._context.settings
        limit = Limit(settings.transaction_rows_max, settings.transaction_bytes_max)
        inputs: dict[str, Input] = {}
        read: dict[str, list[Rows]] = {}
        moving: set[str] = set()
        for name, position in read_positions(self._context.journal, definition, sources).items():
            source = sources[name]
            inputs[name] = Input(position, position)
            if only is not None and name not in only:
                continue
            try:
                offer = source.offer(position, limit)
                if offer is not None and not _is_staged(offer.fragments):
                    read[name] = [rows for one in offer.fragments for rows in note_each_step(source.read(one))]
            except SourceFailed as error:
                self.note_stall(name, error)
                continue
            self.note_progress(name)
            if offer is not None:
                moving.add(name)
                xids = msgspec.UNSET if offer.xids is None else offer.xids
                producers = dict(offer.producers) if offer.producers else msgspec.UNSET
                inputs[name] = Input(position, offer.after, offer.fragments, xids, producers)
        self._moving = moving
        return inputs, read

    def set_goals(self) -> None:
        """Let each `HasGoal` source count as idle once its current upstream content is bound."""
        for source in self._context.sources.values():
            if isinstance(source, HasGoal):
                source.set_goal()

    def is_idle(self) -> bool:
        """Whether no source has more input, as far as known. Stalled sources are not waited for."""
        running = [source for name, source in self._context.sources.items() if name not in self.stalled]
        return "" not in self.stalled and not any(map(self._has_more, running))

    def _has_more(self, source: Source) -> bool:
        is_moving = source.name in self._moving and not isinstance(source, HasGoal)
        return is_moving or (isinstance(source, MayWait) and source.is_waiting)

    def acknowledge(self, bound: Bound, *, is_staged: bool) -> None:
        """Acknowledge staged input once it is bound, and input that can be read again once it is committed (I10)."""
        for name, given in bound.inputs.items():
            if given.before == given.after or _is_staged(given.fragments) != is_staged:
                continue
            try:
                self._context.sources[name].acknowledge(given.after)
            except SourceFailed as error:  # the position is durable, and the next acknowledgement covers it
                self.note_stall(name, error)

    def make_records(self) -> dict[str, SourceRecord]:
        return {name: self._record(source) for name, source in self._context.sources.items()}

    def _record(self, source: Source) -> SourceRecord:
        """The problems that a source reports are newer than the error of its last offer: a paused one makes none."""
        stalled = self.stalled.get(source.name)
        problems = source.problems if isinstance(source, Monitored) else ()
        is_old = isinstance(source, Monitored) and stalled is not None and stalled.state == ComponentState.RECONNECTING
        if stalled is not None and not is_old and not any(problem.state == stalled.state for problem in problems):
            problems = (stalled, *problems)
        state = next(
            (problem.state for problem in problems if problem.state != ComponentState.WARNING), ComponentState.RUNNING
        )
        return SourceRecord(source.tables, state, source.lag if isinstance(source, Monitored) else None, problems)

    def note_stall(self, name: str, error: EvertideError) -> None:
        """Note a problem. Its `since_s` is kept while the state is the same, even if the reason changes."""
        if name:  # a problem of all sources is reported by the step that fails
            self._context.observer.on_failure(FailureEvent("source", name, error.error_code))
        known = self.stalled.get(name)
        if known is None or known.why != error.message:
            before, self._errors[name] = self._errors.get(name), error
            now_s = self._context.runtime.wall_s()
            problem = Problem.from_error(ComponentState.STALLED, error, now_s)
            problem = to_problem(error, now_s) if isinstance(error, SourceFailed) else problem
            if known is not None and known.state == problem.state:
                problem = replace(problem, since_s=known.since_s)
            self.stalled[name] = problem
            if before is None or known is None or known.state != problem.state or not is_same_reason(before, error):
                logger.error("%s is %s: %s", f"source {name!r}" if name else "the pipeline", problem.state, error)

    def note_progress(self, name: str) -> None:
        if (known := self.stalled.pop(name, None)) is not None:
            self._errors.pop(name, None)
            lasted_s = self._context.runtime.wall_s() - known.since_s
            what = f"source {name!r}" if name else "the pipeline"
            logger.warning("%s is running again; it was %s for %.1f s", what, known.state, lasted_s)


def _is_staged(fragments: Iterable[Fragment]) -> bool:
    return all(isinstance(fragment, Staged) for fragment in fragments)
