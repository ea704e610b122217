"""Registration and leadership: replicas that are fenced, restarted in containers, or lose storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from evertide.errors import (
    BlobMissing,
    Conflict,
    Fenced,
    OutcomeUnknown,
    TimeCompacted,
    Unavailable,
)
from evertide.pipeline.maintenance.checkpointer import Checkpointer
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import RUNNING, Leader, ProcessRole, end_registration
from evertide.pipeline.replicas.leadership import Leadership
from evertide.runtime import SystemRuntime
from evertide.store.meta import Meta, Write, seal
from evertide.store.paths import LEADER, beat_key, writer_key
from evertide.store.process_identity import this_process
from evertide.store.writers import HeartbeatRecord, Registration, Writer, end_silent_writers, read_registrations
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.pipeline.kit import crash, open_pipeline, rows_of, storage
from tests.pipeline.replica_kit import QUICK, caught_up, leaders, order, pair, shared


def test_a_fenced_process_notices_without_input() -> None:
    """Otherwise the fenced process would keep the connections of its sources for ever, and block other processes."""
    settings = replace(QUICK, heartbeat_interval_s=0.01)
    with open_pipeline(shared(), settings=settings, threads=True, role=ProcessRole.REPLICA) as p:
        p.advance()
        p._writer.unregister()
        with pytest.raises(Fenced):
            p.run()  # never returns if the process does not notice
        assert p.status().state == "failed"


def test_taking_the_lead_is_retried_if_storage_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its tasks counted as started, no process would deliver, compact or recompute failed views."""
    with pair(shared()) as (first, second):
        crash(first)

        def away(_: Checkpointer) -> None:
            raise Unavailable(path="meta", why="it is away")

        with monkeypatch.context() as patched:
            patched.setattr(Checkpointer, "refresh", away)
            with pytest.raises(Unavailable):
                second.advance()
        assert not leaders(second)
        second.push("orders", [order(1)])
        second.commit()
        assert leaders(second) == [second]


def replace_leader(first: Pipeline, second: Pipeline) -> None:
    """Let a follower take over from a silent leader, and continue until nothing of the leader's last time is left."""
    [known] = [one for name, one in read_registrations(first.storage.meta).items() if name == first._writer.id]
    assert end_registration(first.storage.meta, known, SystemRuntime(), QUICK)
    for number in range(20, 28):
        second.push("orders", [order(number)])
        second.commit()
        second.checkpoint()
    second._leader_tasks.checkpointer.collect_garbage()


CALLS: dict[str, Callable[[Pipeline], object]] = {
    "advance": Pipeline.advance,
    "commit": Pipeline.commit,
    "run": Pipeline.run,
    "checkpoint": Pipeline.checkpoint,
    "periodic checkpoint": Pipeline.try_checkpoint,
    "retry": lambda p: p._leader_tasks.backfills._failed(TimeCompacted(where="shard", why="gone", as_of=1, since=9)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_computed", [False, True])
def test_x21_a_fenced_process_reports_the_fence_before_other_errors(
    call: str, is_computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data that the process needs may be deleted by then: `time_compacted` or `blob_missing` would hide
    the reason."""

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="meta", why="it is away")

    with pair(shared()) as (first, second):
        for number in range(4):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        first.push("orders", [order(9)])
        if is_computed:  # and waits for its commit
            with monkeypatch.context() as patched:
                patched.setattr("evertide.pipeline.transaction.runner.append_together", away)
                with pytest.raises(Unavailable):
                    first.commit()
        replace_leader(first, second)
        if call == "retry":
            CALLS[call](first)
        else:
            with pytest.raises(Fenced):
                CALLS[call](first)
        with pytest.raises(Fenced):
            first.advance()
        assert (first.status().problems[0].error_code, second.status().state) == ("fenced", "running")
        assert rows_of(second, "counts") == [(12 + is_computed, 0)]


def test_x21_a_process_that_is_fenced_during_a_checkpoint_reports_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed periodic checkpoint stops nothing; a fence does."""
    with pair(shared()) as (first, _):
        first.push("orders", [order(1)])
        first.commit()

        def gone(*_: Any) -> None:
            first._writer.unregister()
            raise BlobMissing(path="part", why="it was collected")

        monkeypatch.setattr(Checkpointer, "_draft", gone)
        with pytest.raises(Fenced):
            first.try_checkpoint()


def register(meta: Meta, **origin: object) -> Registration:
    """Register a leader with a fresh heartbeat, of another process with our host name, and our pid unless another is
    given."""
    at, now_s = this_process(), SystemRuntime().wall_s()
    ours = Registration("aa", RUNNING, at.host, at.pid, now_s, 20.0, at.boot, at.namespace, at.start_ticks)
    other = msgspec.structs.replace(ours, **origin)
    writes = [
        Write(writer_key("aa"), 0, seal(other)),
        Write(beat_key("aa"), 0, seal(HeartbeatRecord("aa", 1, now_s, 1))),
        Write(LEADER, 0, seal(Leader("aa", now_s, "change"))),
    ]
    assert meta.commit(writes) is None
    return other


def test_x20_a_container_restarted_with_its_pid_and_host_name_continues_at_once() -> None:
    """The previous process is proven to be gone: the process with that pid started at another time."""
    kept = shared()
    before = register(kept.meta, start_ticks=this_process().start_ticks - 1)
    with open_pipeline(kept, settings=QUICK) as p:
        assert p.leads
        assert before.writer not in read_registrations(kept.meta)


@pytest.mark.parametrize("origin", [{"namespace": "pid:[1]"}, {"boot": "another"}, {"boot": "", "namespace": ""}])
def test_x20_containers_with_one_host_name_do_not_end_each_other(origin: dict[str, object]) -> None:
    """The pid of the other container is free here, which proves nothing about its process."""
    kept = shared()
    other = register(kept.meta, pid=2**22 - 1, **origin)
    with pytest.raises(Conflict, match="runs the pipeline"):
        open_pipeline(kept, settings=QUICK)
    writer = Writer.register(kept.meta, runtime=SystemRuntime(), settings=QUICK)
    assert not Leadership(kept.meta, writer, SystemRuntime(), QUICK, may_take=True).try_acquire()
    assert other.writer in read_registrations(kept.meta)


class Clock(SystemRuntime):
    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def sleep_s(self, seconds: float) -> None:
        self.now_s += seconds


def test_x6_an_outage_for_all_replicas_ends_no_registration() -> None:
    """After the outage all replicas are silent for longer than allowed: the first to check must not end the others."""
    clock, kept = Clock(), storage()
    settings = replace(QUICK, writer_ttl_s=20.0, heartbeat_interval_s=5.0, retry_limit_s=1e-9)
    first = Writer.register(kept.meta, runtime=clock, settings=settings, label=RUNNING)
    seen = FaultyMeta(kept.meta, Faults(lambda *_: Fault.LOST if is_away else Fault.DONE, lambda *_: Fault.DONE))
    is_away = False
    second = Writer.register(seen, runtime=clock, settings=settings, label=RUNNING)
    leadership = Leadership(seen, second, clock, settings, may_take=True)
    assert Leadership(kept.meta, first, clock, settings, may_take=True).try_acquire()
    is_away = True
    clock.now_s += 25
    with pytest.raises(OutcomeUnknown):
        second.beat()
    is_away = False
    assert not leadership.try_acquire()
    second.beat()
    assert not leadership.try_acquire()
    assert end_silent_writers(kept.meta, runtime=clock, settings=settings, own_writer=second) == []
    clock.now_s += 11
    second.beat()
    assert leadership.try_acquire(), "the replica had time for a heartbeat, and sent none"
