"""The maintenance threads of a shard: heartbeats, compaction, garbage collection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from evertide.errors import Fenced, RecordDamaged, Unavailable
from evertide.runtime import SystemRuntime
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.maintenance import Maintenance
from evertide.shard.shard import Shard, Shards
from evertide.store import MemoryBlob, MemoryMeta, Write
from evertide.store.paths import beat_key, shard_key
from evertide.store.writers import Writer, end_silent_writers, read_registrations
from tests.kit.runtime import ManualRuntime
from tests.shard.kit import BLOBS, SCHEMA, PassingMeta, changes, make_shards, make_writer, rows_at

QUICK = replace(
    BLOBS,
    maintenance_interval_s=0.01,
    garbage_interval_s=0.02,
    heartbeat_interval_s=0.01,
    writer_ttl_s=30,
    lease_ttl_s=30,
)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a thread has made the condition true."""
    waiting = threading.Event()
    for _ in range(2000):
        if holds():
            return
        waiting.wait(0.005)
    pytest.fail("the condition did not become true in time")


def fill(shard: Shard, writer: Writer, times: range) -> None:
    for time in times:
        shard.compare_and_append(changes([(time, "row")], time), time, time + 1, writer)


def test_maintenance_keeps_a_shard_small_while_it_grows() -> None:
    shards = make_shards(settings=QUICK)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    with Maintenance(shards, writer) as maintenance:
        fill(shard, writer, range(100))
        wait_until(lambda: len(list(shards.blob.list("parts/t/"))) < 20)
    assert maintenance.failing.errors == {}
    assert rows_at(shard, 99).total() == 100


def test_an_idle_shard_is_compacted_once_since_allows() -> None:
    shards = make_shards(settings=QUICK)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    shard.compare_and_append(changes([(1, "row")], 0), 0, 1, writer)
    shard.compare_and_append(changes([(1, "row")], 1, -1), 1, 2, writer)
    maintenance = Maintenance(shards, writer)
    maintenance.run_once()
    assert shard.inspect().rows == 2
    shard.advance_since(1, writer)
    maintenance.run_once()
    assert shard.inspect().rows == 0
    assert list(shards.blob.list("parts/t/")) == []


def test_a_failing_shard_is_reported_and_the_others_continue() -> None:
    shards = make_shards(settings=QUICK)
    writer = make_writer(shards)
    good, bad = (shards.create(name, SCHEMA, writer) for name in ("good", "bad"))
    fill(good, writer, range(BLOBS.compaction_fan_in))
    seqno = bad.log.read().seqno
    shards.meta.commit([Write(shard_key("bad"), seqno, b"\x01 this is no record")])
    maintenance = Maintenance(make_shards(shards.blob, shards.meta, settings=QUICK), writer)
    maintenance.run_once()
    assert isinstance(maintenance.failing.errors["maintenance of shard bad"], RecordDamaged)
    assert set(maintenance.failing.errors) == {"maintenance of shard bad"}
    assert len(good.log.read().state.batches) == 1


@pytest.mark.parametrize("call", ["get", "put"])
def test_stopping_does_not_wait_for_a_merge(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it reads, and while it writes slices. Fails if the merge continues, or leaves the blobs that it wrote."""
    shards = make_shards(settings=replace(QUICK, compaction_rows_max=2, inline_bytes_max=1))
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    fill(shard, writer, range(QUICK.compaction_fan_in))
    maintenance = Maintenance(shards, writer)
    real, calls = getattr(shards.blob, call), 0

    def stopping(*args: object) -> object:
        nonlocal calls
        calls += 1
        maintenance._stopping.set()
        return real(*args)

    before = shard.log.read().state
    monkeypatch.setattr(shards.blob, call, stopping)
    maintenance.run_once(collect_garbage=False)
    assert calls == 1
    assert shard.log.read().state == before
    assert {entry.key for entry in shards.blob.list("parts/t/")} == {part.key for part in before.parts}
    monkeypatch.undo()
    Maintenance(shards, writer).run_once()
    assert len(shard.log.read().state.batches) == 1


def test_maintenance_ends_when_its_writer_is_fenced() -> None:
    shards = make_shards(settings=QUICK)
    writer = make_writer(shards)
    shards.create("t", SCHEMA, writer)
    with Maintenance(shards, writer) as maintenance:
        writer.unregister()
        wait_until(lambda: bool(maintenance.failing.errors))
    assert isinstance(maintenance.failing.errors["maintenance of all shards"], Fenced)


def test_x1_a_new_generation_during_maintenance_is_not_a_failure() -> None:
    shards = make_shards(settings=QUICK)
    writer, peer = make_writer(shards), make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    fill(shard, writer, range(40))
    maintenance = Maintenance(shards, writer)
    peer.change_generation(["t"])
    assert maintenance.tick()
    assert maintenance.failing.errors == {}
    assert len(shard.inspect().batches) == 40
    writer.adopt_generation()
    assert maintenance.tick()
    assert len(shard.inspect().batches) < 20


def test_a_shard_that_keeps_failing_is_tried_and_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """Fails without the growing pause: the shard is read, and the error logged, in every round."""
    runtime = ManualRuntime()
    settings = replace(QUICK, maintenance_interval_s=1.0, writer_ttl_s=1e6)
    shards = make_shards(runtime=runtime, settings=settings)
    writer = make_writer(shards)
    bad = shards.create("bad", SCHEMA, writer)
    shards.meta.commit([Write(shard_key("bad"), bad.log.read().seqno, b"\x01 this is no record")])
    maintenance = Maintenance(make_shards(shards.blob, shards.meta, runtime=runtime, settings=settings), writer)
    tries = 0
    real = maintenance._maintain

    def count_and_maintain(name: str, *, collect_garbage: bool) -> None:
        nonlocal tries
        tries += 1
        real(name, collect_garbage=collect_garbage)

    maintenance._maintain = count_and_maintain  # type: ignore[method-assign]
    began_s = runtime.wall_s()
    for _ in range(120):
        maintenance.tick()
        runtime.advance_s(1.0)
    assert tries == 7, "after 0, 1, 3, 7, 15, 31 and 63 seconds"
    assert len([record for record in caplog.records if "shard bad" in record.message]) == 1
    [problem] = maintenance.failing.problems()
    assert (problem.state, problem.error_code, problem.since_s) == ("warning", "record_damaged", began_s)
    assert "maintenance of shard bad" in problem.why


def test_heartbeats_keep_writer_and_leases_alive() -> None:
    shards = make_shards(settings=QUICK)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    fill(shard, writer, range(1))
    with shard.snapshot(0), Heartbeat(QUICK, shards.leases, writer) as heart:
        first = shard.inspect().leases[0]
        begun = shards.meta.head(beat_key(writer.id))
        assert begun is not None
        wait_until(lambda: (shards.meta.head(beat_key(writer.id)) or begun).seqno > begun.seqno + 3)
        assert shard.inspect().leases[0].lease == first.lease
    assert heart.error is None


class AwayMeta(PassingMeta):
    is_away = False

    def commit(self, writes, guards=()):  # type: ignore[no-untyped-def]
        if self.is_away:
            raise Unavailable(path="away", why="unplugged")
        return super().commit(writes, guards)


def test_a_failed_heartbeat_is_reported_until_one_succeeds() -> None:
    meta = AwayMeta(MemoryMeta())
    shards = Shards(MemoryBlob(), meta, runtime=SystemRuntime(), settings=replace(BLOBS, retry_limit_s=0.01))
    writer = make_writer(shards)
    heart = Heartbeat(BLOBS, shards.leases, writer)
    meta.is_away = True
    heart.beat()
    assert isinstance(heart.error, Unavailable)
    meta.is_away = False
    heart.beat()
    assert heart.error is None


def test_heartbeat_reports_that_its_writer_is_fenced() -> None:
    runtime = ManualRuntime()
    shards = make_shards(runtime=runtime)
    writer = make_writer(shards)
    heart = Heartbeat(BLOBS, shards.leases, writer)
    runtime.advance_s(BLOBS.writer_ttl_s + 1)
    assert end_silent_writers(shards.meta, runtime=runtime, settings=BLOBS) == [writer.id]
    heart.beat()
    assert isinstance(heart.error, Fenced)
    assert read_registrations(shards.meta) == {}
