"""The log of one shard: reading it while collectors move on, and changing it whatever storage answers.

`Host`, `changes` and the hooked stores at the top serve the other tests of storage safety, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from threading import Thread

import pyarrow as pa
import pytest

from evertide.errors import (
    BlobMissing,
    Conflict,
    Fenced,
    OutcomeUnknown,
    RecordDamaged,
    StorageFull,
    Unavailable,
    Unexpected,
    UpperMismatch,
)
from evertide.rows.changes import changes_schema
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.log import Proposal, ShardLog, commit
from evertide.shard.shard import Shard, Shards
from evertide.shard.state import Appended, Diff, SinceAdvanced
from evertide.store import (
    Blob,
    BlobEntry,
    Fault,
    Faults,
    FaultyMeta,
    Guard,
    MemoryBlob,
    MemoryMeta,
    Meta,
    Record,
    Stale,
    Write,
)
from evertide.store.paths import hold_key, part_prefix, rollup_key, rollup_prefix, shard_key, writer_key
from evertide.store.writers import Writer
from evertide.testing import ManualRuntime
from evertide.types import SequenceNumber, Time

SCHEMA = pa.schema([pa.field("k", pa.int64())])
SETTINGS = Settings(inline_bytes_max=1, rollup_every_diffs=1000, compaction_fan_in=2, fetchers=1)
"""Every part is a blob, and nothing is rolled up unless a test says so."""


def changes(rows: Mapping[int, int], time: int) -> pa.Table:
    """Rows, each with its diff, at one time."""
    columns = [list(rows), [time] * len(rows), list(rows.values())]
    schema = changes_schema(SCHEMA)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def content_of(shard: Shard, as_of: int) -> dict[int, int]:
    with shard.snapshot(as_of, timeout_s=0.001) as snapshot:
        found = snapshot.to_arrow()
    return dict(zip(found["k"].to_pylist(), found["__diff"].to_pylist(), strict=True))


class Host:
    """One process on a storage: its view of it, and its writer."""

    def __init__(self, blob: Blob, meta: Meta, runtime: Runtime, settings: Settings = SETTINGS) -> None:
        self.blob = blob
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self.shards = Shards(blob, meta, runtime=runtime, settings=settings)
        self.writer = Writer.register(meta, runtime=runtime, settings=settings)

    def create(self, name: str = "a") -> Shard:
        return self.shards.create(name, SCHEMA, self.writer)

    def open(self, name: str = "a") -> Shard:
        return self.shards.open(name)

    def append(self, shard: Shard, rows: Mapping[int, int], upper: int | None = None) -> None:
        """At the shard's upper; the new upper is one more, unless told."""
        lower = shard.upper
        shard.compare_and_append(changes(rows, lower), lower, upper or lower + 1, self.writer)

    def blobs(self, prefix: str = "") -> set[str]:
        return {entry.key for entry in self.blob.list(prefix)}


class Memory:
    """A storage in memory, and the processes on it."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.blob = MemoryBlob()
        self.meta = MemoryMeta(self.runtime)

    def host(self, blob: Blob | None = None, meta: Meta | None = None, **tuned: float) -> Host:
        settings = dataclasses.replace(SETTINGS, **tuned)  # type: ignore[arg-type]
        return Host(blob or self.blob, meta or self.meta, self.runtime, settings)

    def log(self, blob: Blob | None = None, meta: Meta | None = None, name: str = "a") -> ShardLog:
        """As a process sees it that just started."""
        return ShardLog(name, blob or self.blob, meta or self.meta, self.runtime, SETTINGS)


@pytest.fixture
def memory() -> Memory:
    return Memory()


Before = Callable[[str, str], None]
"""Is told the operation and its key before it happens."""


class HookedBlob:
    def __init__(self, inner: Blob, before: Before) -> None:
        self._inner = inner
        self._before = before

    def get(self, key: str) -> bytes:
        self._before("get", key)
        return self._inner.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._before("get_range", key)
        return self._inner.get_range(key, offset, length)

    def put(self, key: str, data: bytes) -> None:
        self._before("put", key)
        self._inner.put(key, data)

    def delete(self, key: str) -> bool:
        self._before("delete", key)
        return self._inner.delete(key)

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        self._before("list", prefix)
        return self._inner.list(prefix)

    def unfinished(self, prefix: str) -> Iterator[str]:
        self._before("unfinished", prefix)
        return self._inner.unfinished(prefix)

    def path(self, key: str) -> str:
        return self._inner.path(key)


class HookedMeta:
    def __init__(self, inner: Meta, before: Before) -> None:
        self._inner = inner
        self._before = before

    def head(self, key: str) -> Record | None:
        self._before("head", key)
        return self._inner.head(key)

    def heads(self, prefix: str) -> dict[str, Record]:
        self._before("heads", prefix)
        return self._inner.heads(prefix)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        self._before("scan", key)
        return self._inner.scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        self._before("commit", " ".join(write.key for write in writes))
        return self._inner.commit(writes, guards)

    def truncate(self, key: str, below: int) -> None:
        self._before("truncate", key)
        self._inner.truncate(key, below)

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        self._before("wait", key)
        return self._inner.wait(key, after, timeout_s)

    def close(self) -> None:
        self._inner.close()

    def path(self, key: str) -> str:
        return self._inner.path(key)


class Steps:
    """Runs `act` before the operation of one number, and counts all."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at = at
        self.act = act
        self.count = 0
        self.said: list[str] = []

    def __call__(self, operation: str, key: str) -> None:
        self.count += 1
        self.said.append(f"{operation} {key}")
        if self.count == self.at:
            self.act()


def nothing() -> None:
    """For `Steps` that only count."""


class LateMeta(HookedMeta):
    """A server that takes a commit, loses its connection, and does the commit some time after."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner, lambda _operation, _key: None)
        self.under_way: list[tuple[Sequence[Write], Sequence[Guard]]] = []
        self.script: list[str] = []
        self.between: Callable[[], None] = nothing

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        step = self.script.pop(0) if self.script else "done"
        path = self.path(writes[0].key)
        if step == "late":
            self.under_way.append((writes, guards))
            raise OutcomeUnknown(path=path, why="the connection was lost")
        if step == "full":
            raise StorageFull(path=path, why="no space left on device")
        if step == "away":
            self.between()
            raise Unavailable(path=path, why="no connection")
        return super().commit(writes, guards)

    def arrive(self) -> None:
        for writes, guards in self.under_way:
            self._inner.commit(writes, guards)
        self.under_way.clear()


def move_on(host: Host, shard: Shard, *, appends: int = 2) -> None:
    """Appends, a roll-up of all of it, and a collection: what a cached view and an old address do not survive."""
    for _ in range(appends):
        host.append(shard, {shard.upper: 1})
    assert shard.log.roll_up(host.writer)
    host.writer.beat()
    assert shard.collect_garbage(host.writer).diffs


# Reading while a collector is at work


def test_an_old_roll_up_address_is_looked_up_again() -> None:
    """The collector deletes the roll-up, and truncates, before every single step of a reader that starts.

    Seen to fail with `_opened` taking the first finding for damage.
    """
    for at in range(1, 5):
        memory = Memory()
        host = memory.host()
        shard = host.create()
        move_on(host, shard)
        steps = Steps(at, partial(move_on, host, shard))
        found = memory.log(HookedBlob(memory.blob, steps), HookedMeta(memory.meta, steps)).read()
        assert found.state.upper == (4 if at <= 3 else 2), steps.said
    assert [said.split()[0] for said in steps.said] == ["head", "get", "scan", "head"], "every step was covered"


def test_a_reader_that_is_overtaken_at_every_step_gets_there_in_the_end(memory: Memory) -> None:
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
    """Seen to fail with `_advanced` not looking at the number of the first diff."""
    behind, ahead = memory.host(), memory.host()
    old, new = behind.create(), ahead.create()
    behind.append(old, {1: 1})
    known = old.log.known()
    for _ in range(3):
        move_on(ahead, new)
    assert memory.meta.scan(old.log.key)[0].seqno > known.seqno + 1
    assert old.log.known() == known
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
    """As after a restore of meta.db that is older than its roll-up address, or of the one key."""
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
    assert log.roll_up(one.writer) is None, "a peer was faster"
    assert len(memory.meta.scan(rollup_key("a"))) == 1
    assert len(one.blobs(rollup_prefix("a"))) == 1
    assert memory.log().read().state.upper == 1


# Committing, whatever storage answers


@pytest.mark.parametrize("faults", list(product(Fault, repeat=3)), ids=lambda faults: "-".join(f.name for f in faults))
def test_an_append_happens_exactly_once_whatever_is_answered(memory: Memory, faults: tuple[Fault, ...]) -> None:
    """Seen to fail with `commit` not looking for its token: then it is `UpperMismatch` after DONE_LOST."""
    host = memory.host()
    host.create()
    script = Faults.none()
    shard = Shards(memory.blob, FaultyMeta(memory.meta, script), runtime=memory.runtime, settings=SETTINGS).open("a")
    script._choose = Faults.scripted(faults)._choose  # only now, as opening reads
    shard.compare_and_append(changes({1: 1}, 0), 0, 1, host.writer)
    shard.compare_and_append(changes({2: 1}, 1), 1, 2, host.writer)
    assert content_of(host.open(), 1) == {1: 1, 2: 1}
    assert [record.seqno for record in memory.meta.scan("shard/a")] == [1, 2, 3], "no diff twice"
    assert len(host.blobs(part_prefix("a"))) == 2


@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED], ids=lambda fault: str(fault.name))
@pytest.mark.parametrize("peer", ["compacts", "moves since", "moves on", "appends"])
def test_whatever_a_peer_does_in_between(memory: Memory, fault: Fault, peer: str) -> None:
    """Right after our first try, whose answer is lost or which was refused, before we look or try again."""
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
    assert memory.log().read().state.upper == (5 if peer == "appends" else 4), "once"


def test_a_lost_race_is_told_as_such_though_an_answer_was_lost(memory: Memory) -> None:
    """Our first try is still under way when a peer is first: it cannot happen any more, so this is no doubt."""
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
    assert len(host.blobs(part_prefix("a"))) == 1, "ours was withdrawn"


def test_nothing_to_do_commits_nothing(memory: Memory) -> None:
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
    assert host.blobs(part_prefix("a")) == set(), "withdrawn"
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
    """Seen to fail with `_changes` not applying what it made."""
    host = memory.host()
    shard = host.create()
    with pytest.raises(Unexpected):
        commit([Proposal(shard.log, lambda _state: diff)], host.writer)
    assert len(memory.meta.scan(shard.log.key)) == 1
    assert memory.log().read().state.upper == 0


def test_a_fenced_writer_changes_nothing(memory: Memory) -> None:
    """I16. Seen to fail without `writer.guards()` in the commit."""
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
    """Replicas start together: both find nothing, one is first, and the other gets its shard."""
    host, other = memory.host(), memory.host()
    left = [other.create]

    def before(operation: str, key: str) -> None:
        if operation == "commit" and shard_key("a") in key and left:
            left.pop()()

    shards = Shards(memory.blob, HookedMeta(memory.meta, before), runtime=memory.runtime, settings=SETTINGS)
    assert shards.create("a", SCHEMA, host.writer).upper == 0
    assert not left


def test_holds_without_a_shard_are_not_taken_for_a_new_shard(memory: Memory) -> None:
    host = memory.host()
    memory.meta.commit([Write(hold_key("a"), 0, b"left behind")])
    with pytest.raises(Conflict, match="holds exist, but shard 'a' does not"):
        host.create()


# "May have happened" stays "may have happened" (I14)


@pytest.mark.parametrize("then", ["full", "away"])
def test_a_commit_in_doubt_is_not_called_undone_and_its_parts_stay(memory: Memory, then: str) -> None:
    """The first try is still under way at the server when the second is refused.

    Whoever calls that "did not happen" lets collection take the parts, and then the first try arrives.
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
def test_a_roll_up_in_doubt_is_not_called_undone_and_stays(memory: Memory, then: str) -> None:
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


def test_a_lost_answer_is_not_a_lost_race_though_the_same_writer_went_on_and_the_diffs_are_gone(memory: Memory) -> None:
    """A process appends, and its maintenance compacts the same shard under the same writer.

    The append happened and its answer is lost; before it looks, compaction, roll-up and collection come by. The state
    then tells the writer's last token only. Taking that for "not there" would report a lost race and withdraw parts
    that the shard names; to find it, or to say that nobody can tell any more, are both right.
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
            beside.join(0.5)  # or it waits for its turn, which is as good

    shard.log.meta = FaultyMeta(HookedMeta(memory.meta, before), script)
    with suppress(OutcomeUnknown):
        shard.compare_and_append(changes({2: 1}, 1), 1, 2, host.writer)
    beside.join()
    assert content_of(host.open(), 1) == {1: 1, 2: 1}
