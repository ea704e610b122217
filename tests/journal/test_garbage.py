"""Truncation, and dropping unbound fragments: what is deleted, what is kept, and when nothing may be deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evertide.errors import (
    Damaged,
    EvertideError,
    Fenced,
    RecordDamaged,
    TimeCompacted,
    Unavailable,
    Unexpected,
    UnsupportedFormat,
)
from evertide.journal.records import Bound, Staged
from evertide.journal.staging import list_staged
from evertide.store import Record, Write
from evertide.store.paths import COMMITTED, JOURNAL, beat_key, writer_key
from tests.journal.kit import TTL_S, Host, Site, rows_in
from tests.shard.hosts import HookedBlob, HookedMeta


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def host(site: Site) -> Host:
    """Three transactions, two of them committed."""
    host = site.host()
    shard = host.create()
    for number in range(3):
        host.bind_rows(number)
    host.commit(shard)
    host.commit(shard)
    return host


def keys(host: Host, *times: int) -> set[str]:
    return {fragment.key for time in times for fragment in list_staged(host.journal.read(time))}


def check_complete(host: Host) -> list[list[int]]:
    """Every record that is kept can be read in full: none names a deleted blob."""
    return [rows_in(host.journal, host.journal.read(line.time)) for line in host.journal.describe()]


# Truncation


@pytest.mark.parametrize("count", [2, 3, 100])
def test_few_records_are_in_memory_at_a_time(site: Site, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if all are read at once: each may have `inline_bytes_max` of pushed rows."""
    monkeypatch.setattr("evertide.journal.time_log._RECORDS_AT_ONCE", count)
    host = site.host()
    shard = host.create()
    for number in range(7):
        host.bind_rows(number)
        host.commit(shard)
    scan, sizes = site.meta.scan, list[int]()

    def measure(key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        found = scan(key, after, limit)
        sizes.extend([len(found)] if key == JOURNAL else [])
        return found

    gone, kept = keys(host, *range(5)), keys(host, 5, 6)
    with monkeypatch.context() as patch:
        patch.setattr(site.meta, "scan", measure)
        assert host.journal.drop_unbound(host.writer) == []
        assert set(host.journal.truncate(5, host.writer)) == gone
    assert max(sizes) == min(count, 7)
    assert host.staged_blobs() == kept
    assert [bound.time for bound in host.journal.read_from(5)] == [5, 6]


@pytest.mark.parametrize("missing", range(2, 7))
def test_a_missing_record_is_noticed_wherever_it_is(site: Site, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the first record of each further read is not compared with the last one of the read before."""
    monkeypatch.setattr("evertide.journal.time_log._RECORDS_AT_ONCE", 2)
    host = site.host()
    host.create()
    for number in range(7):
        host.bind_rows(number)
    before, scan = host.staged_blobs(), site.meta.scan

    def omit(key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        found = [record for record in scan(key, after) if key != JOURNAL or record.seqno != missing]
        return found[:limit]

    monkeypatch.setattr(site.meta, "scan", omit)
    with pytest.raises(RecordDamaged):
        host.journal.drop_unbound(host.writer)
    assert host.staged_blobs() == before


def test_records_and_fragments_below_the_time_are_deleted(host: Host) -> None:
    gone, kept = keys(host, 0), keys(host, 1, 2)
    assert set(host.journal.truncate(1, host.writer)) == gone
    assert host.staged_blobs() == kept
    assert [bound.time for bound in host.journal.read_from(1)] == [1, 2]
    for read in (host.journal.read, host.journal.read_from):
        with pytest.raises(TimeCompacted) as error:
            read(0)
        assert (error.value.as_of, error.value.since) == (0, 1)
    with pytest.raises(TimeCompacted, match="committed"):
        host.journal.read_outcome(0)
    assert host.journal.truncate(1, host.writer) == [], "truncating again changes nothing"


def test_the_newest_record_of_either_key_stays(host: Host) -> None:
    """Without it the positions of the sources would be lost. Fails if all records are truncated."""
    host.commit(host.open())
    host.journal.truncate(3, host.writer)
    assert (host.journal.upper, host.journal.committed_upper) == (3, 3)
    assert host.journal.positions() == {"push": "3"}
    assert check_complete(host) == [[2]]
    assert host.journal.read_outcome(2) is not None
    assert host.bind_rows(3).time == 3


def test_uncommitted_transactions_are_not_truncated(host: Host) -> None:
    """Fails without the check: the rows would be deleted before a shard has them."""
    with pytest.raises(Unexpected, match="transactions from 2 on are not committed"):
        host.journal.truncate(3, host.writer)
    assert check_complete(host) == [[0], [1], [2]]


def test_a_crash_before_the_deletion_leaves_orphans(site: Site, host: Host) -> None:
    """After a crash at any operation `drop_unbound` finds what is left over, and no named blob is missing."""
    for at in range(1, 12):
        here = Site()
        owner = here.host()
        shard = owner.create()
        for number in range(3):
            owner.bind_rows(number)
            owner.commit(shard)
        count = 0

        def crash(_operation: str, key: str, at: int = at) -> None:
            nonlocal count
            count += 1
            if count >= at:
                raise Unavailable(path=key, why="the process is gone")

        victim = here.host()
        victim.journal._blob = HookedBlob(here.blob, crash)
        victim.journal._bound.meta = victim.journal._committed.meta = HookedMeta(here.meta, crash)
        try:
            victim.journal.truncate(2, victim.writer)
            finished = True
        except Unavailable:
            finished = False
        fresh = here.successor()
        fresh.journal.drop_unbound(fresh.writer)
        check_complete(fresh)
        assert fresh.staged_blobs() == {key for line in fresh.journal.describe() for key in keys(fresh, line.time)}
    assert finished


def test_a_fenced_writer_truncates_and_drops_nothing(site: Site, host: Host) -> None:
    """I16. Fails without the first heartbeat."""
    site.successor().journal.drop_unbound(site.host().writer)
    with pytest.raises(Fenced):
        host.journal.truncate(1, host.writer)
    with pytest.raises(Fenced):
        host.journal.drop_unbound(host.writer)
    assert check_complete(host) == [[0], [1], [2]]


# Dropping


def test_a_live_writers_fragments_stay_until_it_drops_them(site: Site, host: Host) -> None:
    """However often the writer beats. Fails if `_will_not_be_named` is always true."""
    staged = [host.stage(7), host.stage(8)]
    collector = site.host()
    host.writer.beat()
    assert collector.journal.drop_unbound(collector.writer) == []
    host.bind({"push": (1, staged[1:])})
    host.writer.beat()
    assert collector.journal.drop_unbound(collector.writer) == []
    assert host.bind({"push": (1, staged[:1])}).time == 4
    assert check_complete(host) == [[0], [1], [2], [8], [7]]


def test_files_without_a_writers_name_are_left_alone(site: Site) -> None:
    for key in ("journal/push/readme.txt", "journal/notes", "journal/push/copy of 1.arrow"):
        site.blob.put(key, b"not of a writer")
    host = site.successor()
    assert host.journal.drop_unbound(host.writer) == []
    assert len(host.staged_blobs()) == 3


def test_an_unfinished_put_is_dropped(site: Site) -> None:
    """A torn fragment after a crash, as `Blob.list_unfinished` lists it."""

    class Torn(HookedBlob):
        torn = ("journal/push/00000000000000aa-00000001.arrow",)

        def list_unfinished(self, prefix: str):  # type: ignore[no-untyped-def]
            assert prefix == "journal/"
            return iter(self.torn)

    host = site.host(Torn(site.blob, lambda _operation, _key: None))
    assert host.journal.drop_unbound(host.writer) == list(Torn.torn)


def damage(key: str) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        head = host.meta.head(key)
        assert head is not None
        host.meta.commit([Write(key, head.seqno, head.data[:-1])])

    return act


def newer(key: str) -> Callable[[Host], None]:
    return lambda host: host.append_newer(key)


EVIDENCE: list[tuple[str, Callable[[Host], None], type[EvertideError]]] = [
    ("a damaged record", damage(JOURNAL), Damaged),
    ("a newer record", newer(JOURNAL), UnsupportedFormat),
    ("a damaged registration", lambda host: damage(writer_key(host.writer.id))(host), Damaged),
    ("a damaged heartbeat", lambda host: damage(beat_key(host.writer.id))(host), Damaged),
]


@pytest.mark.parametrize(("name", "spoil", "kind"), EVIDENCE, ids=[name for name, _, _ in EVIDENCE])
def test_a_garbage_collection_that_cannot_read_a_record_deletes_nothing(
    site: Site, host: Host, name: str, spoil: Callable[[Host], None], kind: type[EvertideError]
) -> None:
    """I12. Fails if unreadable records are skipped: then the blobs that they name are deleted."""
    host.stage(9)
    host.writer.unregister()
    other = site.host()
    other.stage(10)
    spoil(other)
    before = other.staged_blobs()
    collector = site.host()
    with pytest.raises(kind):
        collector.journal.drop_unbound(collector.writer)
    assert other.staged_blobs() == before


def test_a_listing_that_fails_deletes_nothing(site: Site, host: Host) -> None:
    host.stage(9)
    host.writer.unregister()

    def before(operation: str, key: str) -> None:
        if operation == "list_unfinished":
            raise Unavailable(path=key, why="no connection")

    collector = site.host(HookedBlob(site.blob, before))
    with pytest.raises(Unavailable):
        collector.journal.drop_unbound(collector.writer)
    assert len(host.staged_blobs()) == 4


def test_a_commit_record_that_cannot_be_read_stops_truncation(host: Host) -> None:
    host.append_newer(COMMITTED)
    before = host.staged_blobs()
    with pytest.raises(UnsupportedFormat, match=COMMITTED):
        host.journal.truncate(1, host.writer)
    assert host.staged_blobs() == before
    assert [bound.time for bound in host.journal.read_from(0)] == [0, 1, 2]


# A collector between any two steps (C9)


def run_victim(at: int, *, silent: bool) -> int:
    """A victim stages and binds; a collector runs before its operation number `at`. Returns the number of
    operations.
    """
    count = 0
    site = Site()
    collector = site.host()

    def before(_operation: str, _key: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            site.runtime.advance_s(TTL_S + 1 if silent else 0)
            collector.journal.drop_unbound(collector.writer)

    bound: list[Bound] = []
    try:
        victim = Host(HookedBlob(site.blob, before), HookedMeta(site.meta, before), site.runtime)
        bound.append(victim.bind({"push": (1, [victim.stage(1), victim.stage(2)])}))
        victim.writer.beat()
        bound.append(victim.bind_rows(3))
    except Fenced:
        assert silent
    found = collector.journal.read_from(0)
    assert found[: len(bound)] == bound
    assert [rows_in(collector.journal, record) for record in found] == [[1, 2], [3]][: len(found)]
    fresh = site.successor()
    fresh.journal.drop_unbound(fresh.writer)
    assert fresh.staged_blobs() == {fragment.key for record in found for fragment in list_staged(record)}
    return count


@pytest.mark.parametrize("silent", [False, True])
def test_c9_garbage_collection_between_any_two_steps_of_stage_and_bind(silent: bool) -> None:
    """One run per operation of the victim, with the victim alive, and with it silent for too long.

    Fails if `stage` settles its number, and without the guards in `bind`.
    """
    total = run_victim(0, silent=silent)
    assert total > 10
    for at in range(1, total + 1):
        run_victim(at, silent=silent)


def test_c9_a_bind_between_any_two_steps_of_garbage_collection() -> None:
    """A fragment that is listed as unbound is bound, and its number settled, during the garbage collection.

    Fails if the records are read before the settled numbers.
    """
    at, count = 0, 1
    while at < count:
        at += 1
        count = 0
        site = Site()
        owner = site.host()
        staged = owner.stage(1)

        def before(_operation: str, _key: str, at: int = at, owner: Host = owner, staged: Staged = staged) -> None:
            nonlocal count
            count += 1
            if count == at:
                owner.bind({"push": (1, [staged])})
                owner.writer.beat()

        collector = Host(HookedBlob(site.blob, before), HookedMeta(site.meta, before), site.runtime)
        collector.journal.drop_unbound(collector.writer)
        assert at > count or owner.rows_bound() == [1]
    assert at > 6
