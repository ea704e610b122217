"""The journal: staging, reading, binding, committing; a test for each rule."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from evertide.errors import (
    BlobDamaged,
    Conflict,
    EvertideError,
    Fenced,
    GenerationMoved,
    InvalidInput,
    OutcomeUnknown,
    RecordDamaged,
    StorageFull,
    TimeCompacted,
    Unavailable,
    Unexpected,
)
from evertide.journal.journal import Journal
from evertide.journal.records import Bound, Committed, Input, Staged
from evertide.journal.staging import StagingArea
from evertide.store import Meta, Record, Write
from evertide.store.meta import seal
from evertide.store.paths import COMMITTED, JOURNAL
from evertide.store.writers import Writer
from evertide.types import Generation, Time
from tests.journal.kit import Host, Site, make_place, rows_of
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.shard.hosts import LateMeta, content_of
from tests.shard.kit import PassingMeta


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def host(site: Site) -> Host:
    return site.host()


# StagingArea


def test_rows_come_back_as_they_were_staged(host: Host) -> None:
    rows = rows_of(1, 2, 3).replace_schema_metadata({"origin": "test"})
    staged = host.journal.stage("push", "orders", rows, host.writer)
    assert (staged.table, staged.rows) == ("orders", 3)
    assert staged.key == f"journal/push/{host.writer.id}-00000001.arrow"
    assert host.blob.get(staged.key)[:4] == b"\xff\xff\xff\xff", "the blob is an Arrow stream"
    loaded = host.journal.load(staged)
    assert loaded.equals(rows)
    assert loaded.schema.metadata == {b"origin": b"test"}
    empty = host.journal.stage("push", "orders", rows_of(), host.writer)
    assert host.journal.load(empty).equals(rows_of())
    assert host.journal.load(empty).schema.metadata is None


@pytest.mark.parametrize("source", ["", ".", "..", "a/b", "-x", "x" * 201, "a b", "ä"])
def test_a_source_whose_name_is_no_path_is_refused(host: Host, source: str) -> None:
    with pytest.raises(InvalidInput, match="source"):
        host.journal.stage(source, "orders", rows_of(1), host.writer)
    assert host.staged_blobs() == set()


def test_a_put_that_fails_leaves_no_number_open(site: Site) -> None:
    """Fails without `settle` in `stage`: collectors would keep its blobs for as long as the process runs."""
    host = site.host(FaultyBlob(site.blob, Faults.scripted([Fault.DONE_LOST] * 100)))
    with pytest.raises(OutcomeUnknown):
        host.stage(1)
    peer = site.host()
    [orphan] = peer.staged_blobs()
    host.writer.beat()
    assert peer.journal.drop_unbound(peer.writer) == [orphan]


def test_a_put_whose_answer_was_lost_is_repeated(site: Site) -> None:
    host = site.host(FaultyBlob(site.blob, Faults.scripted([Fault.REFUSED, Fault.DONE_LOST])))
    assert host.journal.load(host.stage(1, 2)).equals(rows_of(1, 2))


def test_dropped_fragments_are_deleted_and_cannot_be_bound(host: Host) -> None:
    """Fails without `check_open` in `bind`: the record would name a deleted blob."""
    first, second = host.stage(1), host.stage(2)
    assert host.journal.drop([first], host.writer) == [first.key]
    assert host.staged_blobs() == {second.key}
    with pytest.raises(Unexpected, match="is already bound, or was dropped"):
        host.bind({"push": (1, [first, second])})
    assert host.journal.upper == 0
    host.bind({"push": (1, [second])})
    assert host.journal.drop([first, second], host.writer) == [], "one fragment is dropped, one is bound"
    assert host.rows_bound() == [2]


def test_a_drop_whose_delete_fails_is_left_for_garbage_collection(site: Site) -> None:
    host = site.host(FaultyBlob(site.blob, Faults.scripted([Fault.DONE, Fault.REFUSED])))
    staged = host.stage(1)
    assert host.journal.drop([staged], host.writer) == [staged.key]
    assert host.staged_blobs() == {staged.key}
    assert host.journal.drop_unbound(host.writer) == [staged.key]


def test_only_what_this_writer_and_this_source_staged_can_be_bound(site: Site, host: Host) -> None:
    """A fragment of another writer may be collected at any moment. Fails without `check_open`."""
    other = site.host()
    with pytest.raises(Unexpected, match=f"not staged by writer {host.writer.id}"):
        host.bind({"push": (1, [other.stage(1)])})
    with pytest.raises(Unexpected, match="not staged by source 'push'"):
        host.bind({"push": (1, [host.stage(1, source="pull")])})
    with pytest.raises(Unexpected, match=f"not staged by writer {host.writer.id}"):
        host.bind({"push": (1, [Staged("orders", "journal/push/notes.txt", 1, 1, "c")])})
    twice = host.stage(1)
    with pytest.raises(Unexpected, match="twice"):
        host.bind({"push": (1, [twice, twice])})
    assert host.journal.drop([other.stage(2)], host.writer) == [], "a fragment of another writer is not dropped"
    assert host.journal.upper == 0


# Reading


def test_a_new_journal_is_empty(host: Host) -> None:
    journal = host.journal
    assert (journal.head(), journal.upper, journal.positions(), journal.read_from(0)) == (None, 0, {}, [])
    assert (journal.committed_upper, journal.read_outcome(0), journal.describe()) == (0, None, [])
    with pytest.raises(Unexpected, match=r"Journal.read: transaction 0 is not bound"):
        journal.read(0)
    assert journal.truncate(0, host.writer) == []


def test_a_bound_record_is_read_back(host: Host) -> None:
    bound = [host.bind_rows(number) for number in range(4)]
    journal = Journal(host.blob, host.meta, runtime=host.runtime, settings=host.settings)
    assert [record.time for record in bound] == [0, 1, 2, 3]
    assert [journal.read(time) for time in range(4)] == bound
    assert journal.read_from(0) == bound
    assert journal.read_from(2) == bound[2:]
    assert journal.read_from(4) == journal.read_from(9) == []
    assert (journal.head(), journal.upper, journal.positions()) == (bound[3], 4, {"push": "4"})
    assert {record.writer for record in bound} == {host.writer.id}
    assert len({record.token for record in bound}) == 4
    with pytest.raises(Unexpected, match="transaction 4 is not bound"):
        journal.read(4)


def test_records_that_do_not_follow_each_other_are_damage(host: Host) -> None:
    """Fails without the check in `TimeLog`: a replay would skip the gap."""
    first = host.bind_rows(1)
    skipped = Bound(Time(2), Generation(1), first.inputs, "w", "1", 0.0)
    host.meta.commit([Write(JOURNAL, 1, seal(skipped))])
    with pytest.raises(RecordDamaged, match=r"journal #2.*transaction 2, but record 1 holds 0"):
        host.journal.read_from(1)


# Binding


def test_a_source_continues_at_its_position(host: Host) -> None:
    """Fails without the position check in `check_inputs`."""
    host.bind({"push": (3, [make_place()])})
    for before in ("0", "2", "4"):
        with pytest.raises(Conflict, match=f"source 'push': transaction 0 ends at 3, but the input starts at {before}"):
            host.journal.bind({"push": Input(before, "9", (make_place(),))}, Generation(1), host.writer)
    assert host.journal.upper == 1
    assert host.bind({"push": (1, [make_place()])}).inputs["push"] == Input("3", "4", (make_place(),))


def test_a_position_may_stay_or_move_without_rows_but_rows_need_a_new_position(host: Host) -> None:
    assert host.bind({"push": (0, [])}).time == 0
    assert host.bind({"push": (5, [])}).time == 1
    with pytest.raises(Unexpected, match="offers 1 fragments, but its position stays 5"):
        host.bind({"push": (0, [make_place()])})
    assert host.journal.positions() == {"push": "5"}


def test_a_new_generation_may_add_and_remove_sources(host: Host) -> None:
    host.bind({"a": (1, []), "b": (1, [])}, generation=1)
    host.journal.bind({"a": Input("1", "2"), "c": Input("7", "8")}, Generation(2), host.writer)
    assert host.journal.positions() == {"a": "2", "c": "8"}
    with pytest.raises(Conflict, match="source 'a'"):
        host.journal.bind({"a": Input("1", "2")}, Generation(3), host.writer)
    with pytest.raises(GenerationMoved, match=r"transaction 1 has generation 2; this writer still has generation 1"):
        host.bind({}, generation=1)


def test_a_bind_that_loses_the_race_returns_the_peers_transaction(site: Site) -> None:
    """The loser's fragment stays staged and open, and is bound next. Fails if a stale commit is taken for success."""
    late = LateMeta(site.meta)
    host, peer = site.host(meta=late), site.host()
    staged = host.stage(1)
    inputs = host.inputs({"push": (1, [staged]), "pull": (0, [])})
    calls: list[Bound] = []

    def first(operation: str, key: str) -> None:
        if operation == "commit" and key == JOURNAL and not calls:
            calls.append(peer.bind({"push": (0, []), "pull": (1, [make_place()])}))

    late._before = first
    found = host.journal.bind(inputs, Generation(1), host.writer)
    assert [found] == calls
    assert found.writer == peer.writer.id
    assert peer.journal.drop_unbound(peer.writer) == [], "the fragment is not bound yet"
    assert host.bind({"push": (1, [staged])}).time == 1
    assert host.rows_bound() == [1]


def test_a_writer_that_was_ended_binds_nothing(site: Site) -> None:
    """I16. Fails without the guards in `bind`."""
    host = site.host()
    staged = host.stage(1)
    site.successor().journal.drop_unbound(site.host().writer)
    with pytest.raises(Fenced, match="unregistered"):
        host.bind({"push": (1, [staged])})
    assert site.host().journal.upper == 0


def test_a_writer_of_an_old_generation_binds_nothing(site: Site) -> None:
    host, peer = site.host(), site.host()
    peer.writer.change_generation(["a"])
    with pytest.raises(Fenced, match="generation"):
        host.bind({"push": (1, [])})


@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED])
def test_a_bind_of_unknown_outcome_is_read_back(site: Site, fault: Fault) -> None:
    """I14: bound once, and reported as bound."""
    script = [Fault.DONE, fault]  # the first write is the registration
    host = site.host(meta=FaultyMeta(site.meta, Faults.scripted(script)))
    staged = host.stage(1)
    found = host.bind({"push": (1, [staged])})
    assert (found.time, found.writer) == (0, host.writer.id)
    assert host.journal.read_from(0) == [found]
    assert not host.writer.is_open(1)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_bind_that_stays_in_doubt_keeps_its_fragments(site: Site, arrives: bool) -> None:
    """It may take effect after the retries ended. Fails if `drop` deletes a fragment in doubt: then a record
    names it.
    """
    late = LateMeta(site.meta)
    host = site.host(meta=late)
    staged = host.stage(1)
    late.script = ["late", *["full"] * 50]
    with pytest.raises(OutcomeUnknown):
        host.bind({"push": (1, [staged])})
    late.script.clear()
    host.journal.drop_unbound(host.writer)
    assert host.journal.drop([staged], host.writer) == []
    peer = site.host()
    assert peer.journal.drop_unbound(peer.writer) == []
    if arrives:
        late.arrive()
        with pytest.raises(Conflict, match="but the input starts at 0"):
            host.journal.bind({"push": Input("0", "1", (staged,))}, Generation(1), host.writer)
        assert not host.writer.is_open(1)
    else:
        peer.bind({"push": (0, [])})
        late.arrive()
        assert host.writer.is_open(1)
        host.bind({"push": (1, [staged])})
    assert host.rows_bound() == [1]


def test_a_second_bind_that_did_not_happen_does_not_end_the_doubt_about_the_first(site: Site) -> None:
    late = LateMeta(site.meta)
    host = site.host(meta=late)
    staged = host.stage(1)
    late.script = ["late", *["full"] * 50]
    with pytest.raises(OutcomeUnknown):
        host.bind({"push": (1, [staged])})
    late.script = ["full"]
    with pytest.raises(StorageFull):
        host.bind({"push": (1, [staged])})
    assert host.journal.drop([staged], host.writer) == []
    late.arrive()
    assert host.rows_bound() == [1]


def test_a_drop_waits_for_a_bind_that_is_about_to_name_the_fragment(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread drops a fragment that is being bound. Fails without the lock that both take: the blob is
    deleted.
    """
    staged = host.stage(1)
    dropped: list[list[str]] = []
    dropping = threading.Thread(target=lambda: dropped.append(host.journal.drop([staged], host.writer)))
    check_open = StagingArea.check_open

    def check_and_meet(staging: StagingArea, source: str, fragments: Sequence[Staged], writer: Writer) -> None:
        check_open(staging, source, fragments, writer)
        dropping.start()
        dropping.join(0.05)

    monkeypatch.setattr(StagingArea, "check_open", check_and_meet)
    host.bind({"push": (1, [staged])})
    dropping.join()
    assert dropped == [[]]
    assert host.rows_bound() == [1]


def test_a_bind_that_did_not_happen_leaves_no_doubt(site: Site) -> None:
    late = LateMeta(site.meta)
    host = site.host(meta=late)
    staged = host.stage(1)
    late.script = ["full"]
    with pytest.raises(Unavailable):
        host.bind({"push": (1, [staged])})
    assert host.journal.drop([staged], host.writer) == [staged.key]


def test_storage_that_fails_at_random_binds_everything_once(site: Site) -> None:
    faults = Faults.seeded(site.runtime, 0.3)
    host = Host(FaultyBlob(site.blob, faults), site.meta, site.runtime)
    host.journal = Journal(host.blob, FaultyMeta(site.meta, faults), runtime=site.runtime, settings=host.settings)
    for number in range(200):
        bound = host.bind_rows(number)
        assert (bound.time, bound.writer) == (number, host.writer.id)
    assert site.host().rows_bound() == list(range(200))
    assert faults.injected[Fault.DONE_LOST] > 20


# A journal after a repair


def test_a_journal_that_begins_at_a_later_time_continues(host: Host) -> None:
    """Record 1 is of time 6: numbers and times differ from here on."""
    made = Bound(Time(6), Generation(4), {"push": Input("60", "60"), "pull": Input("9", "9")}, "w", "1", 0.0)
    outcome = Committed(Time(6), {}, {}, "w")
    host.meta.commit([Write(JOURNAL, 0, seal(made)), Write(COMMITTED, 0, seal(outcome))])
    assert (host.journal.head(), host.journal.upper, host.journal.committed_upper) == (made, 7, 7)
    assert host.journal.positions() == {"push": "60", "pull": "9"}
    with pytest.raises(Conflict, match=r"source 'push'.*transaction 6"):
        host.journal.bind({"push": Input("0", "1"), "pull": Input("9", "9")}, Generation(4), host.writer)
    seventh = host.bind({"push": (1, [host.stage(7)])}, generation=4)
    eighth = host.bind({"push": (1, [host.stage(8)])}, generation=4)
    assert host.journal.read_from(7) == [seventh, eighth]
    assert host.journal.read(7) == seventh
    with pytest.raises(TimeCompacted, match="before 6 were deleted") as error:
        host.journal.read_from(5)
    assert (error.value.as_of, error.value.since) == (5, 6)
    shard = host.create()
    host.append(shard, {}, upper=7)
    assert host.commit(shard) == 7
    assert host.journal.truncate(8, host.writer) == [seventh.inputs["push"].fragments[0].key]  # type: ignore[union-attr]
    assert [record.time for record in host.journal.read_from(8)] == [8]


# Committing


def test_a_commit_is_recorded_with_the_append(host: Host) -> None:
    shard = host.create()
    for number in range(3):
        host.bind_rows(number)
        assert host.commit(shard) == number
    assert host.journal.committed_upper == shard.upper == 3
    assert [host.journal.read_outcome(time) for time in range(3)] == [host.outcome(time) for time in range(3)]
    assert host.journal.read_outcome(3) is None


def test_a_commit_that_lost_the_race_writes_neither(site: Site) -> None:
    host, peer = site.host(), site.host()
    shard = host.create()
    host.bind_rows(1)
    write = host.journal.make_commit_write(host.outcome(0))
    peer.commit(peer.open(), {5: 1})
    with pytest.raises(Conflict):
        host.append_with(shard, {1: 1}, 0, write)
    assert content_of(host.open(), 0) == {5: 1}
    assert host.journal.read_outcome(0) == peer.outcome(0)
    with pytest.raises(Conflict, match="a peer has committed transaction 0; the next transaction to commit is 1"):
        host.journal.make_commit_write(host.outcome(0))


def test_commits_come_in_order_and_after_the_bind(host: Host) -> None:
    """I7. Fails without the check of the upper: a shard would have rows that no record binds."""
    with pytest.raises(Unexpected, match="transaction 0 is not bound"):
        host.journal.make_commit_write(host.outcome(0))
    host.bind_rows(1)
    host.bind_rows(2)
    with pytest.raises(Unexpected, match="cannot commit transaction 1: the next transaction to commit is 0"):
        host.journal.make_commit_write(host.outcome(1))
    assert host.journal.make_commit_write(host.outcome(0)).expected == 0


# Inspection


def test_describe(host: Host) -> None:
    shard = host.create()
    staged = host.stage(1, 2)
    host.bind({"push": (1, [staged]), "pull": (0, [])})
    host.bind({"pull": (4, [make_place(), make_place()])})
    host.bind({})
    host.commit(shard)
    first, second, third = host.journal.describe()
    assert (first.time, first.moved, first.fragments, first.bytes) == (0, ("push",), 1, staged.bytes)
    assert (first.rows, first.committed, first.positions) == (1, True, {"pull": "0", "push": "1"})
    assert (second.moved, second.fragments, second.rows, second.bytes) == (("pull",), 2, None, 0)
    assert (second.committed, second.writer, second.generation) == (False, host.writer.id, 1)
    assert (third.moved, third.fragments, third.rows) == ((), 0, 0)
    assert host.journal.describe(1, 1) == [second]
    assert host.journal.describe(1) == host.journal.describe(1, 10**30) == [second, third]
    assert host.journal.describe(7) == host.journal.describe(2, 1) == host.journal.describe(0, -1) == []
    host.commit(shard)
    host.journal.truncate(1, host.writer)
    assert [line.time for line in host.journal.describe(0, 1)] == [1], "of the requested records, those that are kept"


class CountingMeta(PassingMeta):
    """Counts the records that scans return, by key."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner)
        self.scanned: Counter[str] = Counter()

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        found = super().scan(key, after, limit)
        self.scanned[key] += len(found)
        return found


def test_reading_one_record_does_not_scan_the_others(site: Site) -> None:
    """Fails without the limits in `TimeLog`: a reader far behind would read all earlier records each time."""
    meta = CountingMeta(site.meta)
    host = site.host(meta=meta)
    shard = host.create()
    for number in range(40):
        host.bind_rows(number)
        host.commit(shard)
    looks: list[tuple[Callable[[], object], int, int]] = [
        (lambda: host.journal.read(3), 1, 0),
        (lambda: host.journal.read_outcome(3), 0, 1),
        (lambda: host.journal.describe(5, 7), 3, 3),
        (lambda: host.journal.describe(38), 2, 2),
    ]
    for look, bound, committed in looks:
        meta.scanned.clear()
        look()
        assert (meta.scanned[JOURNAL], meta.scanned[COMMITTED]) == (bound, committed)


def test_reading_back_a_bind_costs_one_record(site: Site) -> None:
    """Fails without the limit in `commit_settled`: peers may have bound many more in the meantime."""
    peer = site.host()

    class Late(CountingMeta):
        def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
            for number in range(5):
                peer.bind_rows(number)
            return super().scan(key, after, limit)

    meta = Late(site.meta)
    host = site.host(meta=FaultyMeta(meta, Faults.scripted([Fault.DONE, Fault.DONE_LOST])))
    assert host.bind({"push": (1, [])}).time == 0
    assert meta.scanned == {JOURNAL: 1}


def test_errors_name_the_place(host: Host) -> None:
    """An error about a blob names the source whose rows it holds."""
    staged = host.stage(1, 2)
    host.overwrite(staged.key, b"x" * staged.bytes)
    with pytest.raises(BlobDamaged) as error:
        host.journal.load(staged, time=7)
    assert error.value.path == host.blob.path(staged.key)
    assert "2 rows of table 'orders' from source 'push', bound in transaction 7" in str(error.value)
    assert isinstance(error.value, EvertideError)
    assert isinstance(host.outcome(0), Committed)
