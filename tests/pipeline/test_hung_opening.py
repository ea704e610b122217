"""X10: a process hangs while it opens a pipeline: in a storage call that never returns, or in Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import EvertideError, Fenced
from evertide.journal.journal import Journal
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.replicas.liveness import find_opening_hang, watch_for_hang
from evertide.pipeline.status.status import Status, read_status
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from evertide.store.open import Storage
from evertide.threads.steps import note_step
from tests.kit.runtime import ManualRuntime
from tests.metrics.kit import wait_for
from tests.pipeline.kit import SETTINGS, open_pipeline, rows_of
from tests.pipeline.replica_kit import order, shared
from tests.pipeline.test_hung_leader import QUICK


@contextmanager
def hanging_restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Make the first process that restores a checkpoint wait until the test releases it."""
    entered, released, restore = threading.Event(), threading.Event(), Checkpoints.restore

    def hang(*given: Any, **chosen: Any) -> Any:
        if not entered.is_set():
            entered.set()
            assert released.wait(60)
        return restore(*given, **chosen)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "restore", hang)
        try:
            yield entered, released
        finally:
            released.set()


def status_of(kept: Storage) -> Status:
    """Return the status as another process reads it."""
    blob, meta, runtime = kept.blob, kept.meta, SystemRuntime()
    shards = Shards(blob, meta, runtime=runtime, settings=QUICK)
    journal = Journal(blob, meta, runtime=runtime, settings=QUICK)
    return read_status(kept, shards, journal, Checkpoints(blob, meta, runtime=runtime, settings=QUICK))


def test_x10_a_leader_that_hangs_while_it_opens_is_reported_and_loses_the_lead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail without liveness in opening: the status was `replaying`, the log was empty, and the process kept the
    lead."""
    kept, ended = shared(), []
    with open_pipeline(kept) as p:
        p.push("orders", [order(1)])
        p.commit()

    def open_first() -> None:
        try:
            open_pipeline(kept, settings=QUICK, threads=True, role=ProcessRole.REPLICA).close()
        except EvertideError as error:
            ended.append(error)

    opening = threading.Thread(target=open_first, daemon=True)
    with hanging_restore(monkeypatch) as (entered, released), caplog.at_level(logging.ERROR):
        opening.start()
        assert entered.wait(60)
        wait_for(lambda: status_of(kept).state == "stalled")
        assert "opening the pipeline has made no step" in status_of(kept).why
        assert "opening the pipeline has made no step" in find_opening_hang()
        wait_for(lambda: "this process hangs: opening the pipeline" in caplog.text)
        second = open_pipeline(kept, settings=QUICK, threads=True, role=ProcessRole.REPLICA)
        wait_for(lambda: second.advance() is None and second.leads)
        second.push("orders", [order(2)])
        assert second.commit() == 2
        assert second.leads
        released.set()
        opening.join(60)
    assert [type(error) for error in ended] == [Fenced]
    assert rows_of(second, "counts") == [(2, 0)]
    second.close()


def test_x10_many_steps_of_opening_do_not_count_as_a_hang() -> None:
    """Fails if the time since the start of opening counts instead of the time since the last step."""
    runtime = ManualRuntime()
    with watch_for_hang("starting Spark", runtime, SETTINGS):
        for _ in range(5):
            runtime.advance_s(SETTINGS.hang_after_s * 0.9)
            assert not find_opening_hang()
            note_step()
        runtime.advance_s(SETTINGS.hang_after_s * 1.1)
        assert "starting Spark has made no step for 660 s" in find_opening_hang()
    assert not find_opening_hang(), "the hang is still reported"


def test_x10_a_hang_before_the_registration_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage does not answer the registration: no record can report the hang."""
    quick, released = replace(QUICK, hang_after_s=0.2), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        assert released.wait(60)
        raise Fenced(writer="w", why="released")

    monkeypatch.setattr("evertide.pipeline.recovery.storage_wait.register_as", hang)

    def open_quick() -> None:
        with suppress(Fenced):
            open_pipeline(shared(), settings=quick, threads=True)

    opening = threading.Thread(target=open_quick, daemon=True)
    with caplog.at_level(logging.ERROR):
        opening.start()
        wait_for(lambda: "registering with the storage has made no step" in caplog.text)
        released.set()
        opening.join(60)
