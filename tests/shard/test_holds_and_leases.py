"""Since and what keeps it: holds, which never lapse, and leases, which end by compare-and-set only (I6, I16)."""

from __future__ import annotations

import pytest

from evertide.errors import InvalidInput, LeaseLost, OutcomeUnknown, RecordDamaged, TimeCompacted
from evertide.shard.lease import Lease, LeaseRecord, live_leases
from evertide.shard.log import ShardLog
from evertide.shard.shard import Shard
from evertide.store import Fault, Faults, FaultyMeta, Write
from evertide.store.paths import hold_key, lease_key, lease_prefix
from evertide.store.sealed import unseal
from evertide.types import Time
from tests.shard.test_log import HookedMeta, Host, Memory, changes, content_of
from tests.store.race import together

TTL_S = 60.0


@pytest.fixture
def memory() -> Memory:
    return Memory()


def filled(host: Host, upper: int = 10) -> Shard:
    shard = host.create()
    for time in range(upper):
        host.append(shard, {time: 1})
    return shard


def recorded(log: ShardLog, lease: Lease) -> LeaseRecord | None:
    found = log.meta.head(lease_key(log.shard, lease.id))
    return unseal(found.data, LeaseRecord, "there") if found else None


# Holds


def test_since_goes_as_far_as_asked_upper_holds_and_leases_allow(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
    assert shard.advance_since(99, host.writer) == 9, "the last complete time can always be read"
    assert (shard.since, shard.holds) == (9, {})


def test_a_hold_keeps_since_until_it_moves(memory: Memory) -> None:
    """Seen to fail with the holds left out of `allowed`."""
    host = memory.host()
    shard = filled(host)
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
    """Seen to fail without the comparison in `set_hold`: it would promise what is gone."""
    host = memory.host()
    shard = filled(host)
    shard.advance_since(4, host.writer)
    with pytest.raises(TimeCompacted, match="'sink' would be below since") as late:
        shard.hold("sink", 3)
    assert (late.value.as_of, late.value.since) == (3, 4)
    shard.hold("sink", 4)
    with pytest.raises(TimeCompacted):
        shard.hold("sink", 2)
    assert shard.holds == {"sink": 4}


def test_a_hold_that_was_granted_is_not_overtaken_at_any_step(memory: Memory) -> None:
    """The hold is granted before each single step of `advance_since`, one run per step.

    Seen to fail with since moved in a commit of its own, without the record of the holds.
    """
    for at in range(1, 12):
        memory = Memory()
        host, other = memory.host(), memory.host()
        shard = filled(host)
        count = [0]

        def before(operation: str, key: str, memory: Memory = memory, count: list[int] = count, at: int = at) -> None:
            count[0] += 1
            if count[0] == at:
                memory.host().open().hold("sink", 2)

        shard.log.meta = HookedMeta(memory.meta, before)
        reached = shard.advance_since(9, host.writer)
        granted = other.open().holds
        assert reached == other.open().since == (2 if granted else 9)
    assert count[0] < at, "every step was covered"


def test_two_who_advance_since_at_once_are_no_damage() -> None:
    """A peer moves it further before each single step, one run per step: the answer is the since that was reached."""
    for at in range(1, 12):
        memory = Memory()
        host, other = memory.host(), memory.host()
        shard = filled(host)
        count = [0]

        def before(operation: str, key: str, other: Host = other, count: list[int] = count, at: int = at) -> None:
            count[0] += 1
            if count[0] == at:
                other.open().advance_since(5, other.writer)

        shard.log.meta = HookedMeta(memory.meta, before)
        reached = shard.advance_since(3, host.writer)
        assert reached == (5 if count[0] >= at else 3) == other.open().since
    assert count[0] < at, "every step was covered"


def test_since_never_overtakes_a_hold_that_was_granted_while_threads_race(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host, 64)

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
def test_holds_and_since_move_once_whatever_is_answered(memory: Memory, fault: Fault) -> None:
    host = memory.host()
    shard = filled(host)
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


def test_a_hold_that_is_there_already_costs_nothing(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
    for _ in range(3):
        shard.hold("sink", 3)
        shard.release("nobody")
    assert len(memory.meta.scan(hold_key("a"))) == 2


def test_old_records_of_holds_do_not_pile_up(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
    for number in range(300):
        shard.hold("sink", number)
    assert len(memory.meta.scan(hold_key("a"))) <= 65
    assert shard.holds == {"sink": 299}


def test_a_finalized_shard_keeps_its_since(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
    shard.finalize(host.writer)
    assert shard.advance_since(9, host.writer) == 0


def test_no_shard_has_no_holds(memory: Memory) -> None:
    host = memory.host()
    with pytest.raises(InvalidInput, match="memory:hold/a"):
        host.shards._shard("a").hold("sink", 0)


# Leases


def test_a_lease_keeps_since_while_it_lives(memory: Memory) -> None:
    """Seen to fail with the leases left out of `allowed`."""
    host = memory.host()
    shard = filled(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    assert shard.advance_since(9, host.writer) == 4
    lease.advance(shard.log.read().seqno, Time(6))
    assert shard.advance_since(9, host.writer) == 4, "others learn of it with a beat"
    host.shards.leases.beat()
    assert shard.advance_since(9, host.writer) == 6
    lease.release()
    assert shard.advance_since(9, host.writer) == 9


def test_a_silent_lease_ends_and_its_reader_is_told_where_to_restart(memory: Memory) -> None:
    host, other = memory.host(), memory.host()
    shard = filled(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    memory.runtime.advance_s(TTL_S)
    assert len(live_leases(other.open().log)) == 1, "exactly its time to live is not too long"
    lease.check(4)
    memory.runtime.advance_s(0.5)
    assert live_leases(other.open().log) == {}
    with pytest.raises(LeaseLost) as lost:
        lease.check(4)
    assert (lost.value.shard, lost.value.lease, lost.value.restart_from) == ("a", lease.id, 4)
    lease.release()
    host.shards.leases.beat()
    assert memory.meta.heads(lease_prefix("a")) == {}, "what is lost does not come back"


def test_no_clock_of_its_own_ends_a_lease(memory: Memory) -> None:
    """Silent for ever, and nobody looked: it is still there."""
    host = memory.host()
    shard = filled(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    memory.runtime.advance_s(10**6)
    lease.check(4)
    host.shards.leases.beat()
    assert len(live_leases(shard.log)) == 1


def test_a_beat_in_between_saves_the_lease(memory: Memory) -> None:
    """The collector read it as silent; it beats before it is removed.

    Seen to fail with a removal that is tried again until it succeeds.
    """
    host, other = memory.host(), memory.host()
    shard = filled(host)
    lease = host.shards.leases.take(shard.log, Time(4))
    memory.runtime.advance_s(TTL_S + 1)
    beats: list[str] = []

    def before(operation: str, key: str) -> None:
        if operation == "commit" and key == lease_key("a", lease.id) and not beats:
            beats.append(key)
            host.shards.leases.beat()

    same = other.open()
    same.log.meta = HookedMeta(memory.meta, before)
    assert list(live_leases(same.log)) == [lease_key("a", lease.id)]
    assert beats
    assert same.advance_since(9, other.writer) == 4
    lease.check(4)


def test_all_leases_of_a_process_beat_in_one_commit_that_touches_no_shard(memory: Memory) -> None:
    """U8: a thousand shards under heartbeats do not fail an append."""
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
    records = [recorded(shard.log, lease) for shard, lease in zip(shards, leases, strict=True)]
    assert [record.beat if record else None for record in records] == [1] * 20


def test_one_lost_lease_does_not_silence_the_others(memory: Memory) -> None:
    """Seen to fail with `beat` giving up at the first stale key."""
    host = memory.host()
    shard = filled(host)
    leases = [host.shards.leases.take(shard.log, Time(number)) for number in range(6)]
    for lost in leases[1], leases[4]:
        memory.meta.commit([Write(lease_key("a", lost.id), 1, None)])
    host.shards.leases.beat()
    beats = [record.beat if (record := recorded(shard.log, lease)) else None for lease in leases]
    assert beats == [1, None, 1, 1, None, 1]
    host.shards.leases.beat()
    for lost in leases[1], leases[4]:
        with pytest.raises(LeaseLost):
            lost.check(0)


def test_beats_do_not_pile_up(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
    lease = host.shards.leases.take(shard.log, Time(0))
    for _ in range(300):
        host.shards.leases.beat()
    assert len(memory.meta.scan(lease_key("a", lease.id))) <= 130
    lease.check(0)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: str(fault.name))
def test_take_beat_and_release_whatever_is_answered(memory: Memory, fault: Fault) -> None:
    host = memory.host()
    shard = filled(host)
    leases = host.shards.leases
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    lease = leases.take(shard.log, Time(0))
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    leases.beat()
    leases.beat()
    record = recorded(shard.log, lease)
    assert record is not None
    assert record.beat == 2
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([fault]))
    lease.release()
    lost = memory.meta.heads(lease_prefix("a"))
    assert len(lost) == (1 if fault is Fault.DONE_LOST else 0), "taken, but nobody heard of it: it ends by itself"
    memory.runtime.advance_s(61.0)
    assert live_leases(shard.log) == {}
    lease.release()


def test_a_beat_whose_answer_never_came_does_not_lose_the_leases(memory: Memory) -> None:
    """Storage was away for longer than we try; the beat had happened, and every lease is as live as before."""
    host = memory.host(retry_limit_s=2.0)
    shard = filled(host)
    leases = host.shards.leases
    taken = [leases.take(shard.log, Time(time)) for time in range(3)]
    leases._meta = FaultyMeta(memory.meta, Faults.scripted([Fault.DONE_LOST] + [Fault.REFUSED] * 100))
    with pytest.raises(OutcomeUnknown):
        leases.beat()
    leases._meta = memory.meta
    leases.beat()
    heads = [memory.meta.head(lease_key("a", lease.id)) for lease in taken]
    assert [head.seqno if head else 0 for head in heads] == [3, 3, 3]


def test_release_gives_parts_free_and_only_then(memory: Memory) -> None:
    """I6. Seen to fail with the floor of a collection taken as its head, whatever the leases say.

    Also with diffs truncated beyond that floor: parts that neither state nor diffs name look like orphans.
    """
    host = memory.host()
    shard = filled(host, 4)
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
    """A collector runs before each single step of a snapshot, one run per step: what it lists can be fetched.

    Seen to fail with the lease taken after the state was read.
    """
    for at in range(1, 12):
        memory = Memory()
        host, other = memory.host(), memory.host()
        filled(host, 4)
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
    assert count[0] < at, "every step was covered"


def test_a_reader_that_slept_too_long_is_told_of_its_lease_not_of_a_file(memory: Memory) -> None:
    """F5. Seen to fail without the look at the lease after `BlobMissing`."""
    host, other = memory.host(), memory.host()
    shard = filled(host, 4)
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


def test_a_damaged_lease_stops_since_and_collection(memory: Memory) -> None:
    """I12: nobody knows what it protects, so it protects everything."""
    host = memory.host()
    shard = filled(host, 4)
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
