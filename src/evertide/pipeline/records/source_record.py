"""The record in which the leader reports the state of sources and sinks, for processes that read it from storage.

Location: Meta key `sources`, version 1; only the newest record counts. The leader writes it while it is registered.
The record is informational: nothing depends on it, and the pipeline continues if it cannot be written.

1. The record is written at the start, and when a state or the set of problems has changed since it was last written.
2. A lag that doubled, halved, appeared or disappeared is written at most every `_LAG_S`, a smaller change of it at most
   every `_SAME_LAG_S`. `told_at_s` is the time of the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, replace
from typing import Self

import msgspec

from evertide.errors import EvertideError
from evertide.pipeline.records.state_record import write_report
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.sources.contract import Lag
from evertide.store.meta import Meta, unseal
from evertide.store.paths import SOURCES
from evertide.store.writers import Registration
from evertide.threads.outage_log import OutageLog
from evertide.threads.ticker import Ticker
from evertide.threads.watched import make_unexpected_error

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_LAG_S = 5.0
_SAME_LAG_S = 30.0


class SourceRecord(msgspec.Struct, frozen=True):
    tables: tuple[str, ...]
    state: ComponentState
    lag: Lag | None = None
    problems: tuple[Problem, ...] = ()


class SinkStateRecord(msgspec.Struct, frozen=True):
    """The state of a sink. Its position is in another record (`evertide.pipeline.sinks.sink_record`)."""

    state: ComponentState
    problem: Problem | None = None


class SourceRecords(msgspec.Struct, frozen=True, omit_defaults=True):
    writer: str
    told_at_s: float
    change: str
    """A unique id, by which a writer recognizes its own commit after an unknown outcome."""
    sources: dict[str, SourceRecord]
    sinks: dict[str, SinkStateRecord] = {}
    feeds: tuple[Problem, ...] = ()
    """Why live clients of a collection are not served."""
    warnings: tuple[Problem, ...] = ()
    """Failures that stop no transaction: of garbage collection, maintenance, checkpoints, threads."""

    def is_from(self, live: Registration | None) -> bool:
        """Whether the live process, if there is one, wrote them."""
        return live is not None and self.writer == live.writer


class SourceReporter(Ticker):
    def __init__(
        self,
        read_sources: Callable[[], Mapping[str, SourceRecord]],
        meta: Meta,
        writer: str,
        runtime: Runtime,
        settings: Settings,
    ) -> None:
        """`read_sources` returns the state of each source. This reporter's thread calls it; it must not block."""
        super().__init__("evertide-sources", _INTERVAL_S)
        self._read_sources = read_sources
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._failure = OutageLog(logger, "could not record the state of sources and sinks", runtime)
        self._read_sinks: Callable[[], Mapping[str, SinkStateRecord]] = dict
        self._read_feeds: Callable[[], Iterable[Problem]] = tuple
        self._read_warnings: Callable[[], Iterable[Problem]] = tuple
        self._written: SourceRecords | None = None
        self._written_s = 0.0

    def watch_sinks(self, read: Callable[[], Mapping[str, SinkStateRecord]]) -> None:
        """Report sinks, too. This reporter's thread calls `read`, which must not wait for a target."""
        self._read_sinks = read

    def watch_feeds(self, read: Callable[[], Iterable[Problem]]) -> None:
        """Report the feeds of live clients, too. This reporter's thread calls `read`, which must not block."""
        self._read_feeds = read

    def watch_warnings(self, read: Callable[[], Iterable[Problem]]) -> None:
        """Report failures that stop no transaction, too. This reporter's thread calls `read`."""
        self._read_warnings = read

    def begin(self, *, threads: bool) -> Self:
        """Report once, and then periodically if `threads`."""
        self.tick()
        return self.start() if threads else self

    def tick(self) -> bool:
        try:
            self.write_if_changed()
            self._failure.end()
        except EvertideError as error:
            self._failure.note(error)
        except Exception as error:  # if this thread died, other processes would read an outdated record (I13)
            if self._failure.note(make_unexpected_error("the record of sources and sinks", error)):
                logger.exception("could not record the state of sources and sinks, because of a bug")
        return True

    def write_if_changed(self) -> None:
        """Write the record if it has changed enough since it was last written."""
        sources = {name: _drop_waits(record) for name, record in self._read_sources().items()}
        sinks, feeds = dict(self._read_sinks()), tuple(self._read_feeds())
        warnings = tuple(replace(one, wait_s=None) for one in self._read_warnings())
        report = SourceRecords(self._writer, 0.0, "", sources, sinks, feeds, warnings)
        now_s = self._runtime.monotonic_s()
        if self._written is not None and not _is_news(self._written, report, now_s - self._written_s):
            return
        record = msgspec.structs.replace(report, told_at_s=self._runtime.wall_s(), change=self._runtime.new_id())
        if write_report(self._meta, SOURCES, self._writer, record, self._runtime, self._settings):
            self._written, self._written_s = report, now_s


def read_source_records(meta: Meta) -> SourceRecords | None:
    record = meta.head(SOURCES)
    return unseal(record.data, SourceRecords, meta.path(SOURCES)) if record else None


def _drop_waits(record: SourceRecord) -> SourceRecord:
    """The record without waiting times, which change at every call."""
    problems = tuple(replace(problem, wait_s=None) for problem in record.problems)
    return msgspec.structs.replace(record, problems=problems)


def _is_news(before: SourceRecords, now: SourceRecords, since_s: float) -> bool:
    if _list_kinds(before) != _list_kinds(now):
        return True
    if _round_lags(before) != _round_lags(now):
        return since_s >= _LAG_S
    return before != now and since_s >= _SAME_LAG_S


def _list_kinds(report: SourceRecords) -> tuple[object, ...]:
    """The states and error codes, without reasons and lags."""
    return (
        {name: (one.tables, one.state, set(_list_codes(one.problems))) for name, one in report.sources.items()},
        {name: (one.state, one.problem.error_code if one.problem else "") for name, one in report.sinks.items()},
        _list_codes(report.feeds),
        _list_codes(report.warnings),
    )


def _list_codes(problems: Iterable[Problem]) -> list[tuple[str, str]]:
    return sorted((one.state, one.error_code) for one in problems)


def _round_lags(report: SourceRecords) -> dict[str, list[int | None]]:
    """The lag of each source, its values rounded to powers of two."""
    return {
        name: [None if each is None else int(each).bit_length() for each in astuple(one.lag or Lag())]
        for name, one in report.sources.items()
    }
