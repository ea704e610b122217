"""What sources offer for the next transaction, and what they are told.

What is not staged is read before it is bound: a source that cannot be read has no part in the transaction, and stalls
alone. What is staged lies in our own storage, and may be more than fits into memory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from evertide.errors import EvertideError, SourceFailed
from evertide.journal.records import Bound, Fragment, Input, Staged
from evertide.pipeline.opening import positions
from evertide.pipeline.runner import Runner
from evertide.pipeline.status import Problem, SourceStatus
from evertide.sources.contract import Limit, Rows, Source, Waiting

__all__ = ["Intake"]

logger = logging.getLogger(__name__)


class Intake:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.stalled: dict[str, Problem] = {}
        """By source; under "" what stops all of them."""

    def input(self, asked: Collection[str] | None = None) -> tuple[dict[str, Input], dict[str, list[Rows]]]:
        """For the journal, and what was read. Every source is in it, those that have nothing where they stand.

        If only some are to be `asked`, the others are left to whoever leads.
        """
        settings = self._runner.settings
        limit = Limit(settings.transaction_rows_max, settings.transaction_bytes_max)
        inputs: dict[str, Input] = {}
        read: dict[str, list[Rows]] = {}
        for name, position in positions(self._runner).items():
            source = self._runner.sources[name]
            inputs[name] = Input(position, position)
            if asked is not None and name not in asked:
                continue
            try:
                offer = source.offer(position, limit)
                if offer is not None and not _is_staged(offer.fragments):
                    read[name] = [rows for fragment in offer.fragments for rows in source.read(fragment)]
            except SourceFailed as error:
                self.stalls(name, error)
                continue
            self.goes_on(name)
            if offer is not None:
                inputs[name] = Input(position, offer.after, offer.fragments)
        return inputs, read

    def is_idle(self) -> bool:
        """Whether no source has anything left, as far as they know. One that stalls is told of, and not waited for."""
        waiting = (
            source.is_waiting
            for name, source in self._runner.sources.items()
            if isinstance(source, Waiting) and name not in self.stalled
        )
        return "" not in self.stalled and not any(waiting)

    def acknowledge(self, bound: Bound, *, is_staged: bool) -> None:
        """What is staged is ours once it is bound; what can be read again, once the shards hold it (I10)."""
        for name, given in bound.inputs.items():
            if given.before == given.after or _is_staged(given.fragments) != is_staged:
                continue
            try:
                self._runner.sources[name].acknowledge(given.after)
            except SourceFailed as error:  # what it was to be told is durable, and is told again with the next
                self.stalls(name, error)

    def status(self, source: Source, position: str) -> SourceStatus:
        stalled = self.stalled.get(source.name)
        return SourceStatus(source.name, source.tables, position, stalled.state if stalled else "running", stalled)

    def stalls(self, name: str, error: EvertideError) -> None:
        known = self.stalled.get(name)
        if known is None or known.why != str(error):
            logger.error("%s stalls: %s", f"source {name!r}" if name else "the pipeline", error)
            since_s = self._runner.runtime.wall_s()
            self.stalled[name] = Problem("stalled", error.error_code, str(error), error.remedy, since_s)

    def goes_on(self, name: str) -> None:
        self.stalled.pop(name, None)


def _is_staged(fragments: Iterable[Fragment]) -> bool:
    return all(isinstance(fragment, Staged) for fragment in fragments)
