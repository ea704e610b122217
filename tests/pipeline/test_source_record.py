"""The status of sources as other processes read it: written when it changes, with its age."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evertide.errors import SourceAway, SourceFailed
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.source_record import SourceReporter, read_source_records
from evertide.pipeline.status.status import SourceStatus, Status, read_status
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime, SystemRuntime
from evertide.shard.shard import Shards
from evertide.sources.contract import Lag
from evertide.store.open import Storage
from evertide.store.paths import SOURCES
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    SETTINGS,
    CandidSource,
    ScriptedSource,
    batch,
    crash,
    open_pipeline,
    storage,
    with_sources,
)

AWAY = Problem(ComponentState.RECONNECTING, "source_away", "no route to host", "wait", 5.0, 0.25)
RISK = Problem(ComponentState.WARNING, "slot_at_risk", "12 bytes are left", "hurry", 6.0)


def reporter_of(p: Pipeline) -> SourceReporter:
    return p._leader_tasks._reporter


def read_stored_status(store: Storage, p: Pipeline, runtime: Runtime | None = None) -> Status:
    """Read the status as another process does."""
    shards = Shards(store.blob, store.meta, runtime=runtime or SystemRuntime(), settings=SETTINGS)
    return read_status(store, shards, p._context.journal, p._context.checkpoints)


def one(status: Status, name: str = "shop") -> SourceStatus:
    return next(source for source in status.sources if source.name == name)


def number(store: Storage) -> int:
    head = store.meta.head(SOURCES)
    return head.seqno if head else 0


def test_the_report_of_a_source_is_in_the_status_here_and_in_storage() -> None:
    store, source = storage(), CandidSource("shop", ("orders",), [batch(ORDERS, [{"id": 1}])])
    with with_sources(source), open_pipeline(store) as p:
        p.advance()
        source.lag, source.problems = Lag(bytes=7, seconds=1.5), (AWAY, RISK)
        here = one(p.status())
        assert (here.state, here.tables, here.lag) == ("reconnecting", ("orders",), Lag(bytes=7, seconds=1.5))
        assert (here.problems, here.told_at_s) == ((AWAY, RISK), None)
        reporter_of(p).write_if_changed()
        found = one(read_stored_status(store, p))
        assert (found.state, found.tables, found.lag) == ("reconnecting", ("orders",), Lag(bytes=7, seconds=1.5))
        assert found.problems == (replace(AWAY, wait_s=None), RISK)
        assert found.told_at_s is not None
        assert one(read_stored_status(store, p), "push").tables == ("notes",)
        source.problems = (RISK,)
        assert (one(p.status()).state, p.status().state) == ("running", "running"), "a warning stops nothing"
    stopped = one(read_stored_status(store, p))
    assert (stopped.state, stopped.lag, stopped.problems, stopped.told_at_s) == ("stopped", None, (), None)
    assert stopped.tables == ("orders",)


def test_a_source_that_reports_no_lag_has_none() -> None:
    source = ScriptedSource("shop", ("orders",))
    with with_sources(source), open_pipeline(storage()) as p:
        assert (one(p.status()).state, one(p.status()).lag) == ("running", None)


def test_only_changes_are_written_and_a_lag_alone_is_no_change() -> None:
    runtime = ManualRuntime()
    store, source = storage(), CandidSource("shop", ("orders",), [batch(ORDERS, [{"id": 1}])])
    with with_sources(source), open_pipeline(store, runtime=runtime) as p:
        p.advance()

        def written(after_s: float = 0.0) -> bool:
            runtime.advance_s(after_s)
            before = number(store)
            reporter_of(p).write_if_changed()
            return number(store) > before

        source.lag = Lag(bytes=1000)
        assert not written(4), "a lag is written at most once per interval"
        assert written(1)
        assert one(read_stored_status(store, p, runtime)).lag == Lag(bytes=1000)
        source.lag = Lag(bytes=1020)
        assert not written(29), "the lag is about the same"
        assert written(1)
        source.lag = Lag(bytes=5000)
        assert written(5)
        source.lag = Lag(bytes=0)
        assert written(5)
        assert not written(1000), "nothing changed"
        source.problems = (AWAY,)
        assert written(), "a change of state is written at once"
        source.problems = (replace(AWAY, why="connection refused", wait_s=5.0),)
        assert not written(1), "the problem is the same"
        source.problems = ()
        assert written()


def test_a_fenced_process_writes_no_more_reports() -> None:
    """Its successor reports its own sources; other processes would believe the old report."""
    store, source = storage(), CandidSource("shop", ("orders",))
    with with_sources(source):
        old = open_pipeline(store)
        crash(old)
        with open_pipeline(store) as p:
            source.problems = (AWAY,)
            reporter_of(old).write_if_changed()
            told = read_source_records(store.meta)
            assert told is not None
            assert told.writer == p._writer.id


def test_the_report_of_an_ended_process_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The killed process could not withdraw its report, and its successor has not written one yet."""
    store, source = storage(), CandidSource("shop", ("orders",), [batch(ORDERS, [{"id": 1}])])
    source.lag, source.problems = Lag(bytes=7), (AWAY,)
    with with_sources(source):
        old = open_pipeline(store)
        old.advance()
        assert one(read_stored_status(store, old)).state == "reconnecting"
        with monkeypatch.context() as patch:
            patch.setattr("evertide.pipeline.status.status.is_gone", lambda *_: True)
            found = one(read_stored_status(store, old))
        assert (found.state, found.lag, found.problems, found.tables) == ("stopped", None, (), ("orders",))
        crash(old)
        monkeypatch.setattr(SourceReporter, "write_if_changed", lambda _: None)
        with open_pipeline(store) as p:
            found = one(read_stored_status(store, p))
            assert (found.state, found.lag, found.problems, found.tables) == ("", None, (), ("orders",))


def test_storage_of_an_older_version_without_the_record_is_readable() -> None:
    store = storage()
    source = ScriptedSource("notes", ("notes",), [batch(NOTES, [{"text": "a"}])])
    with with_sources(source), open_pipeline(store) as p:
        p.advance()
        head = store.meta.head(SOURCES)
        assert head is not None
        told = one(read_stored_status(store, p), "notes")
        assert (told.state, told.tables) == ("running", ("notes",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("evertide.pipeline.status.status.read_source_records", lambda _: None)
            told = one(read_stored_status(store, p), "notes")
        assert (told.state, told.tables, told.lag) == ("", ("notes",), None)


def test_an_outage_has_one_beginning_for_all_its_reports() -> None:
    runtime = ManualRuntime()
    source = ScriptedSource("shop", ("orders",))
    with with_sources(source), open_pipeline(storage(), runtime=runtime) as p:
        source.error = SourceAway(source="shop", where="there", why="connection reset")
        p.advance()
        since_s = p.status().since_s
        runtime.advance_s(7)
        source.error = SourceAway(source="shop", where="there", why="connection refused")
        p.advance()
        status = p.status()
        assert (status.state, status.since_s, status.problems[0].error_code) == ("reconnecting", since_s, "source_away")
        assert "connection refused" in status.why
        runtime.advance_s(7)
        source.error = SourceFailed(source="shop", where="there", why="no such table")
        p.advance()
        assert (p.status().state, p.status().since_s) == ("stalled", since_s + 14)


def test_the_own_report_of_a_source_is_newer_than_its_last_offer() -> None:
    """A pipeline that waits requests no offers: by the last one, the source would be connecting for ever."""
    source = CandidSource("shop", ("orders",))
    with with_sources(source), open_pipeline(storage()) as p:
        source.error = SourceAway(source="shop", where="there", why="connection reset")
        source.problems = (AWAY,)
        p.advance()
        assert one(p.status()).problems == (AWAY,)
        source.problems = ()
        assert (one(p.status()).state, one(p.status()).problems) == ("running", ())
