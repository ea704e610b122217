"""The log of one shard: reading it while garbage is collected, and committing to it under every fault of storage."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import product
from threading import Thread

import pytest

from evertide.errors import (
    BlobMissing,
    Conflict,
    Fenced,
    OutcomeUnknown,
    RecordDamaged,
    Unexpected,
    UpperMismatch,
)
from evertide.shard.shard import Shards
from evertide.shard.shard_log import Proposal, commit
from evertide.shard.state import Appended, Diff, SinceAdvanced
from evertide.store import Guard, Record, Write
from evertide.store.paths import hold_key, part_prefix, rollup_key, rollup_prefix, shard_key, writer_key
from evertide.types import SequenceNumber, Time
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.shard.hosts import (
    SCHEMA,
    SETTINGS,
    HookedBlob,
    HookedMeta,
    LateMeta,
    Memory,
    Steps,
    changes,
    content_of,
    move_on,
)

# Reading during garbage collection


def test_an_outdated_roll_up_address_is_read_again() -> None:
    """The collector deletes the roll-up, and truncates, before every step of a reader that starts.

    Fails if `_opened` takes the first missing roll-up for damage.
    """
    for at in range(1, 5):
        memory = Memory()
        host = memory.host()
        shard = host.create()
        move_on(host, shard)
        steps = Steps(at, partial(move_on, host, shard))
        found = memory.log(HookedBlob(memory.blob, steps), HookedMeta(memory.meta, steps)).read()
        assert found.state.upper == (4 if at <= 3 else 2), steps.said
    assert [said.split()[0] for said in steps.said] == ["head", "get", "scan", "head"], "the last run had no more steps"


def test_a_reader_succeeds_although_garbage_collection_runs_before_each_of_its_steps(memory: Memory) -> None:
    host = memory.host()
    shard = host.create()
    move_on(host, shard)
    left = [8]

    def before(operation: str, key: str) -> None:
        if left[0] and operation in ("get", "scan"):
            left[0] -= 1
            move_on(host, shard)

    found = memory.log(HookedBlob(memory.blob, before), HookedMeta(memory.meta, before)).read()
    assert left == [0]
    assert found == memory.log().read()


def test_a_cached_log_behind_the_truncation_reads_and_commits(memory: Memory) -> None:
    """Fails if `_advanced` ignores the number of the first diff."""
    behind, ahead = memory.host(), memory.host()
    old, new = behind.create(), ahead.create()
    behind.append(old, {1: 1})
    known = old.log.read_cached()
    for _ in range(3):
        move_on(ahead, new)
    assert memory.meta.scan(old.log.key)[0].seqno > known.seqno + 1
    assert old.log.read_cached() == known
    old.compare_and_append(changes({7: 1}, 7), 7, 8, behind.writer)
    assert old.log.read() == memory.log().read()
    assert content_of(new, 7) == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1}


def test_a_roll_up_that_is_gone_for_good_is_damage(memory: Memory) -> None:
    host = memory.host()
    shard = host.create()
    move_on(host, shard)
    [key] = host.blobs(rollup_prefix("a"))
    memory.blob.delete(key)
    with pytest.raises(BlobMissing, match=key):
        memory.log().read()


def test_diffs_that_no_roll_up_covers_are_damage(memory: Memory) -> None:
    host = memory.host()
    shard = host.create()
    for row in range(3):
        host.append(shard, {row: 1})
    memory.meta.truncate(shard.log.key, 3)
    with pytest.raises(RecordDamaged, match="diffs 1 to 2 are missing"):
        memory.log().read()


def test_a_log_that_ends_before_its_roll_up_is_damage(memory: Memory) -> None:
    """As after a restore of a meta.db that is older than its roll-up address, or of that one key."""
    host = memory.host()
    shard = host.create()
    move_on(host, shard)
    memory.meta.commit([Write(shard.log.key, shard.log.read().seqno, None)])
    with pytest.raises(RecordDamaged, match="the log ends at 0, before roll-up 3"):
        memory.log().read()


def test_two_roll_ups_at_once_leave_one_address_and_no_leak(memory: Memory) -> None:
    one, two = memory.host(), memory.host()
    shard, same = one.create(), two.create()
    one.append(shard, {1: 1})

    def race(operation: str, key: str) -> None:
        if operation == "commit" and key == rollup_key("a"):
            assert same.log.roll_up(two.writer) is not None

    log = memory.log(meta=HookedMeta(memory.meta, race))
    assert log.roll_up(one.writer) is None, "the peer's roll-up came first"
    assert len(memory.meta.scan(rollup_key("a"))) == 1
    assert len(one.blobs(rollup_prefix("a"))) == 1
    assert memory.log().read().state.upper == 1


# Commits under every fault


@pytest.mark.parametrize("faults", list(product(Fault, repeat=3)), ids=lambda faults: "-".join(f.name for f in faults))
def test_an_append_happens_exactly_once_under_every_fault(memory: Memory, faults: tuple[Fault, ...]) -> None:
    """Fails if `commit` does not look up its token: then it raises `UpperMismatch` after DONE_LOST."""
    host = memory.host()
    host.create()
    script = Faults.none()
    shard = Shards(memory.blob, FaultyMeta(memory.meta, script), runtime=memory.runtime, settings=SETTINGS).open("a")
    script._choose = Faults.scripted(faults)._choose  # only now, because opening reads too
    shard.compare_and_append(changes({1: 1}, 0), 0, 1, host.writer)
    shard.compare_and_append(changes({2: 1}, 1), 1, 2, host.writer)
    assert content_of(host.open(), 1) == {1: 1, 2: 1}
    assert [record.seqno for record in memory.meta.scan("shard/a")] == [1, 2, 3], "one diff, not two"
    assert len(host.blobs(part_prefix("a"))) == 2


@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED], ids=lambda fault: str(fault.name))
@pytest.mark.parametrize("peer", ["compacts", "moves since", "moves on", "appends"])
def test_a_commit_is_settled_although_a_peer_acts_in_between(memory: Memory, fault: Fault, peer: str) -> None:
    """Right after the first try, whose answer is lost or which was refused, and before the token is looked up or the
    commit retried.
    """
    host, other = memory.host(), memory.host()
    log, same = host.create().log, other.create()
    for row in range(3):
        other.append(same, {row: 1})
    log.read()

    def act() -> None:
        if peer == "compacts":
            assert same.compact(other.writer)
        elif peer == "moves since":
            assert same.advance_since(2, other.writer) == 2
        elif peer == "moves on":
            assert same.log.roll_up(other.writer)
            assert same.collect_garbage(other.writer).diffs
        else:
            other.append(same, {99: 1})

    tried: list[str] = []
    script = Faults.scripted([fault])

    def before(operation: str, _key: str) -> None:
        if script.injected and not tried:
            tried.append(operation)
            act()

    log.meta = HookedMeta(FaultyMeta(memory.meta, script), before)
    assert commit([Proposal(log, lambda state: Appended(state.upper, Time(state.upper + 1), ()))], host.writer)
    assert tried
    assert memory.log().read().state.upper == (5 if peer == "appends" else 4), "appended once"


def test_a_lost_race_after_a_lost_answer_is_upper_mismatch(memory: Memory) -> None:
    """The first try is still in flight when a peer commits. It can no longer happen, so there is no doubt."""
    late = LateMeta(memory.meta)
    host, other = memory.host(meta=late), memory.host()
    shard, same = host.create(), other.create()
    late.script = ["late", "away"]
    late.between = lambda: other.append(same, {5: 1})
    with pytest.raises(UpperMismatch) as lost:
        host.append(shard, {1: 1})
    late.arrive()
    assert (lost.value.expected, lost.value.upper) == (0, 1)
    assert content_of(same, 0) == {5: 1}
    assert len(host.blobs(part_prefix("a"))) == 1, "the losing append withdrew its part"


def test_an_empty_change_commits_nothing(memory: Memory) -> None:
    host = memory.host()
    shard = host.create()
    assert not commit([Proposal(shard.log, lambda _state: None)], host.writer)
    assert len(memory.meta.scan(shard.log.key)) == 1


def test_several_shards_change_together_or_not_at_all(memory: Memory) -> None:
    host, other = memory.host(), memory.host()
    a, b = host.create("a"), host.create("b")
    other.append(other.open("b"), {9: 1})
    with pytest.raises(UpperMismatch):
        host.shards.append_together([(a, changes({1: 1}, 0), 0, 1), (b, changes({2: 1}, 0), 0, 1)], host.writer)
    assert (a.upper, b.upper) == (0, 1)
    assert host.blobs(part_prefix("a")) == set(), "the parts of both shards were withdrawn"
    host.shards.append_together([(a, changes({1: 1}, 0), 0, 2), (b, changes({2: 1}, 1), 1, 2)], host.writer)
    assert (content_of(a, 1), content_of(b, 1)) == ({1: 1}, {9: 1, 2: 1})


def test_foreign_writes_and_guards_that_are_stale_are_a_conflict(memory: Memory) -> None:
    host = memory.host()
    shard = host.create()
    proposals = [Proposal(shard.log, lambda state: Appended(state.upper, Time(state.upper + 1), ()))]
    memory.meta.commit([Write("journal/x", 0, b"1")])
    with pytest.raises(Conflict, match=r"memory:journal/x.*newest record is 1, not 0") as by_write:
        commit(proposals, host.writer, writes=[Write("journal/x", 0, b"2")])
    with pytest.raises(Conflict, match=r"memory:journal/y.*newest record is 0, not 3"):
        commit(proposals, host.writer, guards=[Guard("journal/y", 3)])
    assert type(by_write.value) is Conflict
    assert shard.upper == 0
    assert commit(proposals, host.writer, writes=[Write("journal/x", 1, b"2")], guards=[Guard("journal/y", 0)])
    assert (shard.upper, memory.meta.head("journal/x")) == (1, Record(SequenceNumber(2), b"2"))


@pytest.mark.parametrize(
    "diff",
    [Appended(Time(1), Time(2), ()), Appended(Time(0), Time(-1), ()), SinceAdvanced(Time(5))],
    ids=["gap", "backwards", "since beyond upper"],
)
def test_a_diff_that_does_not_apply_is_never_committed(memory: Memory, diff: Diff) -> None:
    """Fails if `_changes` does not apply the diff that it builds."""
    host = memory.host()
    shard = host.create()
    with pytest.raises(Unexpected):
        commit([Proposal(shard.log, lambda _state: diff)], host.writer)
    assert len(memory.meta.scan(shard.log.key)) == 1
    assert memory.log().read().state.upper == 0


def test_a_fenced_writer_changes_nothing(memory: Memory) -> None:
    """I16. Fails without `writer.guards()` in the commit."""
    host, other = memory.host(), memory.host()
    shard = host.create()
    other.writer.change_generation(["a"])
    with pytest.raises(Fenced, match="generation"):
        host.append(shard, {1: 1})
    host.writer.adopt_generation()
    host.append(shard, {1: 1})
    memory.meta.commit([Write(writer_key(host.writer.id), 1, None)])
    with pytest.raises(Fenced, match="unregistered"):
        host.append(shard, {1: 1})
    with pytest.raises(Fenced, match="unregistered"):
        shard.log.roll_up(host.writer)
    assert content_of(other.open(), 0) == {1: 1}


def test_a_shard_that_a_peer_creates_at_the_same_moment_is_adopted(memory: Memory) -> None:
    """Replicas start together: both find no shard, one creates it, and the other uses that one."""
    host, other = memory.host(), memory.host()
    left = [other.create]

    def before(operation: str, key: str) -> None:
        if operation == "commit" and shard_key("a") in key and left:
            left.pop()()

    shards = Shards(memory.blob, HookedMeta(memory.meta, before), runtime=memory.runtime, settings=SETTINGS)
    assert shards.create("a", SCHEMA, host.writer).upper == 0
    assert not left


def test_holds_without_a_shard_are_not_mistaken_for_a_new_shard(memory: Memory) -> None:
    host = memory.host()
    memory.meta.commit([Write(hold_key("a"), 0, b"left behind")])
    with pytest.raises(RecordDamaged, match="holds of shard 'a' exist, but its log is missing"):
        host.create()


# A commit in doubt stays in doubt (I14)


@pytest.mark.parametrize("then", ["full", "away"])
def test_a_commit_in_doubt_is_not_reported_as_not_happened_and_its_parts_stay(memory: Memory, then: str) -> None:
    """The first try is still in flight at the server when the second is refused.

    An error "did not happen" would let garbage collection delete the parts before the first try takes effect.
    """
    late = LateMeta(memory.meta)
    host, other = memory.host(meta=late), memory.host()
    shard = host.create()
    late.script = ["late", *[then] * 50]
    with pytest.raises(OutcomeUnknown):
        host.append(shard, {1: 1})
    late.script = []
    host.writer.beat()
    other.open().collect_garbage(other.writer)
    late.arrive()
    assert content_of(other.open(), 0) == {1: 1}


@pytest.mark.parametrize("then", ["full", "away"])
def test_a_roll_up_in_doubt_is_not_reported_as_not_happened_and_stays(memory: Memory, then: str) -> None:
    late = LateMeta(memory.meta)
    host, other = memory.host(meta=late), memory.host()
    shard = host.create()
    late.script = ["late", *[then] * 50]
    with pytest.raises(OutcomeUnknown):
        shard.log.roll_up(host.writer)
    late.script = []
    host.writer.beat()
    other.open().collect_garbage(other.writer)
    late.arrive()
    assert memory.log().read().seqno == 1


def test_a_lost_answer_is_not_a_lost_race_after_a_later_commit_and_a_truncation(
    memory: Memory,
) -> None:
    """A process appends, and its maintenance compacts the same shard with the same writer.

    The append took effect and its answer is lost. Before it is looked up, compaction, roll-up and garbage collection
    run, after which the state has only the writer's last token. Taking that for "not there" would report a lost race
    and withdraw parts that the shard names. Both finding the append and reporting an unknown outcome are right.
    """
    host = memory.host()
    shard, same = host.create(), host.open()
    host.append(shard, {1: 1})
    script = Faults.scripted([Fault.DONE_LOST])

    def maintain() -> None:
        same.advance_since(1, host.writer)
        assert same.log.roll_up(host.writer)
        host.writer.beat()
        same.collect_garbage(host.writer)

    beside = Thread(target=maintain)

    def before(operation: str, _key: str) -> None:
        if operation == "scan" and beside.ident is None:
            beside.start()
            beside.join(0.5)  # or it waits for the writer's lock, which is as good

    shard.log.meta = FaultyMeta(HookedMeta(memory.meta, before), script)
    with suppress(OutcomeUnknown):
        shard.compare_and_append(changes({2: 1}, 1), 1, 2, host.writer)
    beside.join()
    assert content_of(host.open(), 1) == {1: 1, 2: 1}
