"""Since, and what limits it: holds, which never expire, and leases, which end only by compare-and-set (I6, I16)."""

from __future__ import annotations

import pytest

from evertide.errors import LeaseLost, OutcomeUnknown, RecordDamaged, TimeCompacted
from evertide.shard.lease import Lease, LeaseRecord, read_live_leases
from evertide.shard.shard import Shard
from evertide.shard.shard_log import ShardLog
from evertide.store import Write
from evertide.store.meta import unseal
from evertide.store.paths import hold_key, lease_key, lease_prefix
from evertide.types import Time
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.shard.hosts import HookedMeta, Host, Memory, changes, content_of
from tests.store.race import together

TTL_S = 60.0


def fill_shard(host: Host, upper: int = 10) -> Shard:
    shard = host.create()
    for time in range(upper):
        host.append(shard, {time: 1})
    return shard


def read_lease(log: ShardLog, lease: Lease) -> LeaseRecord | None:
    found = log.meta.head(lease_key(log.shard, lease.id))
    return unseal(found.data, LeaseRecord, "there") if found else None


# Holds


def test_since_advances_to_the_minimum_of_request_upper_holds_and_leases(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    assert shard.advance_since(99, host.writer) == 9, "the last complete time can always be read"
    assert (shard.since, shard.holds) == (9, {})


def test_a_hold_keeps_since_until_it_moves(memory: Memory) -> None:
    """Fails if `allowed` ignores the holds."""
    host = memory.host()
    shard = fill_shard(host)
    shard.hold("sink", 3)
    shard.hold("shape", 5)
    assert shard.advance_since(9, host.writer) == 3
    memory.runtime.advance_s(10**6)
    assert shard.advance_since(9, host.writer) == 3, "no clock ends a hold"
    shard.hold("sink", 7)
    assert shard.advance_since(9, host.writer) == 5
    shard.release("shape")
    assert shard.advance_since(9, host.writer) == 7
    assert shard.advance_since(4, host.writer) == 7, "since never goes back"
    assert shard.holds == {"sink": 7}


def test_a_hold_below_since_is_refused_with_the_smallest_legal_time(memory: Memory) -> None:
    """Fails without the comparison in `set_hold`: it would grant times that can no longer be read."""
    host = memory.host()
    shard = fill_shard(host)
    shard.advance_since(4, host.writer)
    with pytest.raises(TimeCompacted, match="'sink' would be below since") as late:
        shard.hold("sink", 3)
    assert (late.value.as_of, late.value.since) == (3, 4)
    shard.hold("sink", 4)
    with pytest.raises(TimeCompacted):
        shard.hold("sink", 2)
    assert shard.holds == {"sink": 4}


def test_since_does_not_pass_a_hold_that_is_granted_at_any_step(memory: Memory) -> None:
    """A hold is granted before each step of `advance_since`, one run per step.

    Fails if since moves in a commit that does not include the record of the holds.
    """
    for at in range(1, 12):
        memory = Memory()
        host, other = memory.host(), memory.host()
        shard = fill_shard(host)
        count = [0]

        def before(operation: str, key: str, memory: Memory = memory, count: list[int] = count, at: int = at) -> None:
            count[0] += 1
            if count[0] == at:
                memory.host().open().hold("sink", 2)

        shard.log.meta = HookedMeta(memory.meta, before)
        reached = shard.advance_since(9, host.writer)
        granted = other.open().holds
        assert reached == other.open().since == (2 if granted else 9)
    assert count[0] < at, "the last run had no more steps"


def test_two_concurrent_advances_of_since_are_not_reported_as_damage() -> None:
    """A peer advances since further before each step, one run per step: the result is the since that was reached."""
    for at in range(1, 12):
        memory = Memory()
        host, other = memory.host(), memory.host()
        shard = fill_shard(host)
        count = [0]

        def before(operation: str, key: str, other: Host = other, count: list[int] = count, at: int = at) -> None:
            count[0] += 1
            if count[0] == at:
                other.open().advance_since(5, other.writer)

        shard.log.meta = HookedMeta(memory.meta, before)
        reached = shard.advance_since(3, host.writer)
        assert reached == (5 if count[0] >= at else 3) == other.open().since
    assert count[0] < at, "the last run had no more steps"


def test_since_never_passes_a_hold_while_threads_race(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host, 64)

    def advance(_number: int) -> None:
        mine = memory.host()
        for time in range(0, 64, 3):
            mine.open().advance_since(time, mine.writer)

    def hold(number: int) -> None:
        mine = memory.host().open()
        for time in range(1, 64):
            try:
                mine.hold(f"sink{number}", time)
            except TimeCompacted:
                continue
            assert mine.since <= time
            assert content_of(mine, time) == dict.fromkeys(range(time + 1), 1)
        mine.release(f"sink{number}")

    errors = together(4, lambda number: (advance if number % 2 else hold)(number))
    assert errors == [None] * 4
    assert shard.advance_since(63, host.writer) == 63
    assert shard.holds == {}


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: str(fault.name))
def test_holds_and_since_move_once_under_every_fault(memory: Memory, fault: Fault) -> None:
    host = memory.host()
    shard = fill_shard(host)
    records = len(memory.meta.scan(hold_key("a")))
    shard.log.meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    shard.hold("sink", 3)
    shard.log.meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    assert shard.advance_since(9, host.writer) == 3
    shard.log.meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    shard.release("sink")
    fresh = host.open()
    assert (fresh.since, fresh.holds) == (3, {})
    assert len(memory.meta.scan(hold_key("a"))) == records + 3


def test_setting_an_existing_hold_commits_nothing(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    for _ in range(3):
        shard.hold("sink", 3)
        shard.release("nobody")
    assert len(memory.meta.scan(hold_key("a"))) == 2


def test_old_records_of_holds_are_truncated(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    for number in range(300):
        shard.hold("sink", number)
    assert len(memory.meta.scan(hold_key("a"))) <= 65
    assert shard.holds == {"sink": 299}


def test_a_finalized_shard_keeps_its_since(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    shard.finalize(host.writer)
    assert shard.advance_since(9, host.writer) == 0


def test_a_missing_shard_has_no_holds(memory: Memory) -> None:
    host = memory.host()
    with pytest.raises(RecordDamaged, match="memory:hold/a"):
        host.shards._shard("a").hold("sink", 0)


# Leases


def test_a_lease_keeps_since_while_it_lives(memory: Memory) -> None:
    """Fails if `allowed` ignores the leases."""
    host = memory.host()
    shard = fill_shard(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    assert shard.advance_since(9, host.writer) == 4
    lease.advance(shard.log.read().seqno, Time(6))
    assert shard.advance_since(9, host.writer) == 4, "other processes see the new time after a heartbeat"
    host.shards.leases.beat()
    assert shard.advance_since(9, host.writer) == 6
    lease.release()
    assert shard.advance_since(9, host.writer) == 9


def test_a_silent_lease_ends_and_its_reader_gets_the_time_to_restart_from(memory: Memory) -> None:
    host, other = memory.host(), memory.host()
    shard = fill_shard(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    memory.runtime.advance_s(TTL_S)
    assert len(read_live_leases(other.open().log)) == 1, "a lease is live for exactly its time to live"
    lease.check(4)
    memory.runtime.advance_s(0.5)
    assert read_live_leases(other.open().log) == {}
    with pytest.raises(LeaseLost) as lost:
        lease.check(4)
    assert (lost.value.shard, lost.value.lease, lost.value.restart_from) == ("a", lease.id, 4)
    lease.release()
    host.shards.leases.beat()
    assert memory.meta.heads(lease_prefix("a")) == {}, "a lost lease stays lost"


def test_a_silent_lease_ends_only_when_a_process_removes_it(memory: Memory) -> None:
    """The lease is silent for ever, but no process removed it: it still exists."""
    host = memory.host()
    shard = fill_shard(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    memory.runtime.advance_s(10**6)
    lease.check(4)
    host.shards.leases.beat()
    assert len(read_live_leases(shard.log)) == 1


def test_a_heartbeat_before_the_removal_keeps_the_lease(memory: Memory) -> None:
    """A collector reads the lease as silent; the reader beats before the removal.

    Fails if the removal is retried until it succeeds.
    """
    host, other = memory.host(), memory.host()
    shard = fill_shard(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    memory.runtime.advance_s(TTL_S + 1)
    beats: list[str] = []

    def before(operation: str, key: str) -> None:
        if operation == "commit" and key == lease_key("a", lease.id) and not beats:
            beats.append(key)
            host.shards.leases.beat()

    same = other.open()
    same.log.meta = HookedMeta(memory.meta, before)
    assert list(read_live_leases(same.log)) == [lease_key("a", lease.id)]
    assert beats
    assert same.advance_since(9, other.writer) == 4
    lease.check(4)


def test_all_leases_of_a_process_beat_in_one_commit_that_touches_no_shard(memory: Memory) -> None:
    """U8: heartbeats of leases on a thousand shards do not fail an append."""
    host = memory.host()
    shards = [host.create(f"s{number:03}") for number in range(20)]
    leases = [host.shards.leases.take(shard.log, Time(0)) for shard in shards]
    commits: list[str] = []
    host.shards.leases._meta = HookedMeta(memory.meta, lambda operation, key: commits.append(f"{operation} {key}"))
    heads = {shard.name: shard.log.read().seqno for shard in shards}
    host.shards.leases.beat()
    assert len(commits) == 1
    assert commits[0].split()[0] == "commit"
    assert len(commits[0].split()) == 21
    assert heads == {shard.name: shard.log.read().seqno for shard in shards}
    records = [read_lease(shard.log, lease) for shard, lease in zip(shards, leases, strict=True)]
    assert [record.beat if record else None for record in records] == [1] * 20


def test_a_lost_lease_does_not_stop_the_beats_of_others(memory: Memory) -> None:
    """Fails if `beat` stops at the first stale key."""
    host = memory.host()
    shard = fill_shard(host)
    leases = [host.shards.leases.take(shard.log, Time(number)) for number in range(6)]
    for lost in leases[1], leases[4]:
        memory.meta.commit([Write(lease_key("a", lost.id), 1, None)])
    host.shards.leases.beat()
    beats = [record.beat if (record := read_lease(shard.log, lease)) else None for lease in leases]
    assert beats == [1, None, 1, 1, None, 1]
    host.shards.leases.beat()
    for lost in leases[1], leases[4]:
        with pytest.raises(LeaseLost):
            lost.check(0)


def test_old_heartbeats_are_truncated(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    lease = host.shards.leases.take(shard.log, Time(0))
    for _ in range(300):
        host.shards.leases.beat()
    assert len(memory.meta.scan(lease_key("a", lease.id))) <= 130
    lease.check(0)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: str(fault.name))
def test_take_beat_and_release_under_every_fault(memory: Memory, fault: Fault) -> None:
    host = memory.host()
    shard = fill_shard(host)
    leases = host.shards.leases
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    lease = leases.take(shard.log, Time(0))
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    leases.beat()
    leases.beat()
    record = read_lease(shard.log, lease)
    assert record is not None
    assert record.beat == 2
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    lease.release()
    lost = memory.meta.heads(lease_prefix("a"))
    assert len(lost) == (1 if fault is Fault.DONE_LOST else 0), "its reader does not know of it; it expires"
    memory.runtime.advance_s(61.0)
    assert read_live_leases(shard.log) == {}
    lease.release()


def test_a_heartbeat_whose_answer_is_lost_keeps_the_leases(memory: Memory) -> None:
    """Storage was unavailable for longer than the retries; the heartbeat took effect, and every lease is as live as
    before.
    """
    host = memory.host(retry_limit_s=2.0)
    shard = fill_shard(host)
    leases = host.shards.leases
    taken = [leases.take(shard.log, Time(time)) for time in range(3)]
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([Fault.DONE_LOST] + [Fault.REFUSED] * 100))
    with pytest.raises(OutcomeUnknown):
        leases.beat()
    leases._meta = memory.meta
    leases.beat()
    heads = [memory.meta.head(lease_key("a", lease.id)) for lease in taken]
    assert [head.seqno if head else 0 for head in heads] == [3, 3, 3]


def test_parts_are_collected_only_after_the_lease_is_released(memory: Memory) -> None:
    """I6. Fails if a garbage collection takes its head as its floor and ignores the leases.

    Also fails if diffs beyond that floor are truncated: parts that neither state nor diffs name look like orphans.
    """
    host = memory.host()
    shard = fill_shard(host, 4)
    before = host.blobs("parts")
    snapshot = shard.snapshot(3)
    shard.advance_since(3, host.writer)
    assert shard.compact(host.writer)
    for _ in range(3):
        assert shard.log.roll_up(host.writer)
        host.append(shard, {})
        host.writer.beat()
        collected = shard.collect_garbage(host.writer)
        assert (collected.parts, collected.orphans) == ((), ())
        assert before <= host.blobs("parts")
    assert snapshot.to_arrow().num_rows == 4
    snapshot.close()
    assert set(shard.collect_garbage(host.writer).parts) >= before
    assert content_of(shard, 3) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_lease_is_taken_before_the_state_is_read(memory: Memory) -> None:
    """A collector runs before each step of a snapshot, one run per step: the listed parts can be fetched.

    Fails if the lease is taken after the state was read.
    """
    for at in range(1, 12):
        memory = Memory()
        host, other = memory.host(), memory.host()
        fill_shard(host, 4)
        count = [0]

        def before(operation: str, key: str, other: Host = other, count: list[int] = count, at: int = at) -> None:
            count[0] += 1
            if count[0] == at:
                shard = other.open()
                shard.advance_since(2, other.writer)
                assert shard.compact(other.writer)
                assert shard.collect_garbage(other.writer)

        reader = host.open()
        reader.log.meta = host.shards.leases._meta = HookedMeta(memory.meta, before)
        with reader.snapshot(3) as snapshot:
            assert snapshot.to_arrow().num_rows == 4
    assert count[0] < at, "the last run had no more steps"


def test_a_reader_that_was_silent_too_long_gets_lease_lost(memory: Memory) -> None:
    """F5. Fails if `BlobMissing` is raised without a check of the lease."""
    host, other = memory.host(), memory.host()
    shard = fill_shard(host, 4)
    snapshot = shard.snapshot(3)
    memory.runtime.advance_s(TTL_S + 1)
    same = other.open()
    other.append(same, {9: 1})
    same.advance_since(4, other.writer)
    assert same.compact(other.writer)
    other.writer.beat()
    assert same.collect_garbage(other.writer).parts
    with pytest.raises(LeaseLost) as lost:
        snapshot.to_arrow()
    assert lost.value.restart_from == 3
    snapshot.close()


def test_a_damaged_lease_stops_since_and_garbage_collection(memory: Memory) -> None:
    """I12: the process does not know what the lease protects, so it deletes nothing."""
    host = memory.host()
    shard = fill_shard(host, 4)
    key = lease_key("a", "0123")
    memory.meta.commit([Write(key, 0, b"\x01not a lease")])
    shard.compact(host.writer)
    before = host.blobs()
    with pytest.raises(RecordDamaged, match=f"memory:{key}"):
        shard.advance_since(3, host.writer)
    with pytest.raises(RecordDamaged, match=f"memory:{key}"):
        shard.collect_garbage(host.writer)
    assert host.blobs() == before
    assert shard.since == 0
    shard.compare_and_append(changes({7: 1}, 4), 4, 5, host.writer)
    assert content_of(shard, 4) == {0: 1, 1: 1, 2: 1, 3: 1, 7: 1}
