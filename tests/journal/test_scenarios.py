"""J2, J3, J4, J8, J9, J10, C10: the share of the journal in these scenarios."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    Conflict,
    Fenced,
    OutcomeUnknown,
    StorageFull,
    Unexpected,
    UnsupportedFormat,
)
from evertide.journal.records import Input, Staged
from evertide.runtime import SystemRuntime
from evertide.store import LocalBlob, open_storage
from evertide.store.paths import COMMITTED, JOURNAL
from evertide.types import Generation
from tests.journal.kit import TTL_S, Host, Site, make_place, rows_in, rows_of
from tests.kit.disk import SimulatedDisk
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, LateMeta

FRAGMENTS = 4


@pytest.fixture
def site() -> Site:
    return Site()


# J2: a crash after every fragment, and exactly between two transactions


@pytest.mark.parametrize("crash_after", range(2 * FRAGMENTS + 3))
def test_j2_a_crash_after_every_fragment(site: Site, crash_after: int) -> None:
    """Two transactions of four fragments each. The process ends after `crash_after` steps, and the next one sends
    again.

    The recorded transactions are the same with the same rows, wherever the crash was. Fails if `drop_unbound` drops
    nothing: the fragments of the transaction in progress stay for ever.
    """
    sent = [[[10 * t + f] for f in range(FRAGMENTS)] for t in range(2)]
    steps = crash_after

    def run(host: Host, steps: int) -> None:
        for transaction in sent[int(host.journal.positions().get("push", "0")) :]:
            staged = []
            for rows in transaction:
                if steps == 0:
                    return
                staged.append(host.stage(*rows))
                steps -= 1
            if steps == 0:
                return
            host.bind({"push": (1, staged)})
            steps -= 1

    run(site.host(), steps)
    recorded = site.host().journal.read_from(0)
    fresh = site.successor()
    fresh.journal.drop_unbound(fresh.writer)
    run(fresh, 100)
    assert fresh.journal.read_from(0)[: len(recorded)] == recorded, "bound transactions are unchanged"
    rows = [rows_in(fresh.journal, bound) for bound in fresh.journal.read_from(0)]
    assert rows == [[number for part in transaction for number in part] for transaction in sent]
    assert len(fresh.staged_blobs()) == 2 * FRAGMENTS, "no row is doubled, no blob is left over"


# J3: staged and never bound


def test_j3_unbound_fragments_are_dropped_together_and_their_rows_bound_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if `_will_not_be_named` is always false: the blobs stay for ever, and no log line reports them."""
    dead = site.host()
    dead.bind({"push": (1, [dead.stage(0)]), "pull": (0, [])})
    for number in (1, 2, 3):
        dead.stage(number)
    dead.stage(4, source="pull")
    fresh = site.successor()
    with caplog.at_level(logging.WARNING):
        dropped = fresh.journal.drop_unbound(fresh.writer)
    assert len(dropped) == 4
    assert sorted(record.getMessage() for record in caplog.records) == [
        "deleted 1 staged fragments of source pull that no transaction names",
        "deleted 3 staged fragments of source push that no transaction names",
    ]
    again = [fresh.stage(number) for number in (1, 2, 3)]
    fresh.bind({"push": (1, again)})
    assert fresh.rows_bound() == [0, 1, 2, 3]
    assert fresh.journal.drop_unbound(fresh.writer) == []
    with pytest.raises(Fenced):
        dead.bind({"push": (1, [])})


# J4: a source is missing, or one is too many


def test_j4_a_source_that_only_the_record_has_is_an_error(site: Site) -> None:
    """Fails without the comparison of sources: the position of the source would be lost."""
    host = site.host()
    host.bind({"orders": (1, []), "clicks": (1, [])}, generation=3)
    has = r"the input has the sources \['orders'\], but generation 3 has \['clicks', 'orders'\]"
    with pytest.raises(Unexpected, match=has):
        host.journal.bind({"orders": Input("1", "2")}, Generation(3), host.writer)
    assert host.journal.upper == 1


def test_j4_a_source_that_only_the_pipeline_has_is_an_error(site: Site) -> None:
    host = site.host()
    host.bind({"orders": (1, [])}, generation=3)
    with pytest.raises(Unexpected, match=r"the input has the sources \['clicks', 'orders'\]"):
        host.bind({"clicks": (1, [])}, generation=3)
    assert host.bind({"clicks": (1, [])}, generation=4).time == 1


# J8: another format


@pytest.mark.parametrize("key", [JOURNAL, COMMITTED])
def test_j8_a_record_of_another_format_is_refused(site: Site, key: str) -> None:
    """Every reader refuses it with version, path and remedy, and nothing changes.

    Fails if `unseal` accepts any version.
    """
    host = site.host()
    shard = host.create()
    host.bind_rows(1)
    host.commit(shard)
    host.bind_rows(2)
    host.append_newer(key)
    before = host.meta.scan(JOURNAL), host.meta.scan(COMMITTED), host.staged_blobs()
    journal, writer = host.journal, host.writer
    reads: dict[str, list[Callable[[], object]]] = {
        JOURNAL: [
            journal.head,
            lambda: journal.upper,
            journal.positions,
            lambda: journal.read(0),
            lambda: journal.read_from(0),
            lambda: journal.bind({}, Generation(1), writer),
            lambda: journal.drop_unbound(writer),
        ],
        COMMITTED: [
            lambda: journal.committed_upper,
            lambda: journal.read_outcome(0),
            lambda: journal.make_commit_write(host.outcome(1)),
        ],
    }
    both: list[Callable[[], object]] = [journal.describe, lambda: journal.truncate(1, writer)]
    for use in [*reads[key], *both]:
        with pytest.raises(UnsupportedFormat) as refused:
            use()
        assert (refused.value.found, refused.value.supported) == (2, 1)
        assert refused.value.path.startswith(host.meta.path(key))
        assert "Use a version of Evertide that reads it" in str(refused.value)
    assert (host.meta.scan(JOURNAL), host.meta.scan(COMMITTED), host.staged_blobs()) == before


def stage_with_metadata(host: Host, staged: Staged, metadata: dict[str, str] | None) -> Staged:
    """The same rows, as if another version had written them."""
    rows = rows_of(1).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    content = sink.getvalue().to_pybytes()
    host.overwrite(staged.key, content)
    return Staged("orders", staged.key, 1, len(content), xxhash.xxh3_128_hexdigest(content))


def test_j8_staged_rows_of_another_format_are_refused(site: Site) -> None:
    """Fails without `_check_version`."""
    host = site.host()
    staged = stage_with_metadata(host, host.stage(1), {"evertide.format": "2"})
    with pytest.raises(UnsupportedFormat) as refused:
        host.journal.load(staged)
    assert (refused.value.path, refused.value.found, refused.value.supported) == (host.blob.path(staged.key), 2, 1)
    for metadata in (None, {"evertide.format": "one"}):
        with pytest.raises(BlobDamaged, match="has no valid format version"):
            host.journal.load(stage_with_metadata(host, staged, metadata))
    assert host.journal.load(stage_with_metadata(host, staged, {"evertide.format": "1"})).equals(rows_of(1))


# J9: torn or missing fragments


@pytest.mark.parametrize("time", [0, 1], ids=["the first", "the last"])
def test_j9_an_error_names_a_bound_fragment_that_is_torn_or_missing(site: Site, time: int) -> None:
    """Even the last one, as it may have been acknowledged. Fails without length and checksum in `load`."""
    host = site.host()
    host.bind_rows(*range(100))
    host.bind_rows(*range(100))
    bound = host.journal.read(time)
    [staged] = bound.inputs["push"].fragments
    assert isinstance(staged, Staged)
    content = host.blob.get(staged.key)
    flipped = bytes([content[-9] ^ 1])
    for torn in (b"", content[:-1], content + b"\0", bytes(len(content)), content[:-9] + flipped + content[-8:]):
        host.overwrite(staged.key, torn)
        with pytest.raises(BlobDamaged, match=f"bound in transaction {time}") as damaged:
            rows_in(host.journal, bound)
        assert damaged.value.path == host.blob.path(staged.key)
        assert "from source 'push'" in damaged.value.why
    host.blob.delete(staged.key)
    with pytest.raises(BlobMissing, match=f"bound in transaction {time}") as missing:
        rows_in(host.journal, bound)
    assert missing.value.path == host.blob.path(staged.key)
    assert host.journal.drop_unbound(host.writer) == [], "no operation removes the damage"
    assert host.journal.upper == 2


def test_j9_the_bytes_of_another_fragment_are_damage(site: Site) -> None:
    host = site.host()
    staged = host.stage(1)
    other = stage_with_metadata(host, staged, {"evertide.format": "1"})
    with pytest.raises(BlobDamaged, match="expected 7, found 1"):
        host.journal.load(Staged("orders", staged.key, 7, other.bytes, other.checksum))
    host.overwrite(staged.key, b"not arrow")
    with pytest.raises(BlobDamaged, match="cannot be decoded"):
        host.journal.load(Staged("orders", staged.key, 1, 9, xxhash.xxh3_128_hexdigest(b"not arrow")))


def test_j9_on_a_real_disk(tmp_path: Path) -> None:
    """A torn unbound fragment is dropped; the error of a torn bound one names its file."""
    storage = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=SETTINGS)
    host = Host(storage.blob, storage.meta, SystemRuntime())
    bound = host.bind_rows(1)
    [staged] = bound.inputs["push"].fragments
    assert isinstance(staged, Staged)
    file = tmp_path / "s" / staged.key
    unfinished = file.with_name(file.name.replace(host.writer.id, "00000000000000aa") + ".tmp")
    unfinished.write_bytes(b"half of")
    assert host.journal.drop_unbound(host.writer) == [staged.key.replace(host.writer.id, "00000000000000aa")]
    assert not unfinished.exists()
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(BlobDamaged, match=file.name):
        rows_in(host.journal, host.journal.read(0))
    storage.close()


# J10: input that is sent again


def test_j10_a_source_that_sends_again_after_a_crash_is_bound_once(site: Site) -> None:
    """A crash between bind and acknowledgement. Fails without the position check in `check_inputs`."""
    host = site.host()
    offer = Input("0", "1", (host.stage(1),))
    host.journal.bind({"push": offer}, Generation(1), host.writer)
    fresh = site.successor()
    again = Input("0", "1", (fresh.stage(1),))
    with pytest.raises(Conflict, match=r"source 'push': transaction 0 ends at 1, but the input starts at 0") as error:
        fresh.journal.bind({"push": again}, Generation(1), fresh.writer)
    assert "but the input starts at 0" in error.value.why
    assert fresh.journal.drop([fragment for fragment in again.fragments if isinstance(fragment, Staged)], fresh.writer)
    assert fresh.rows_bound() == [1]
    assert len(fresh.staged_blobs()) == 1


def test_j10_a_push_whose_answer_was_lost_is_bound_once(site: Site) -> None:
    late = LateMeta(site.meta)
    host = site.host(meta=late)
    offer = Input("0", "1", (host.stage(1),))
    late.script = ["late", *["full"] * 50]
    with pytest.raises(OutcomeUnknown):
        host.journal.bind({"push": offer}, Generation(1), host.writer)
    late.script.clear()
    late.arrive()
    with pytest.raises(Conflict, match="but the input starts at 0"):
        host.journal.bind({"push": offer}, Generation(1), host.writer)
    assert host.rows_bound() == [1]


def test_j10_a_replica_that_lost_the_race_offers_only_unbound_input(site: Site) -> None:
    """Both read the same upstream; the loser's copy of what the winner bound is refused, its own push is bound."""
    one, two = site.host(), site.host()
    one.bind({"upstream": (0, []), "push": (0, [])})
    same = [Input("0", "5", (host.stage(5, source="upstream"),)) for host in (one, two)]
    mine = two.stage(6)
    one.journal.bind({"upstream": same[0], "push": Input("0", "0")}, Generation(1), one.writer)
    with pytest.raises(Conflict, match="source 'upstream'"):
        two.journal.bind({"upstream": same[1], "push": Input("0", "1", (mine,))}, Generation(1), two.writer)
    two.bind({"push": (1, [mine])})
    assert two.rows_bound() == [5, 6]


def test_j10_input_by_place_is_bound_once(site: Site) -> None:
    host, peer = site.host(), site.host()
    host.bind({"files": (1, [make_place("a.csv")])})
    with pytest.raises(Conflict, match="source 'files'"):
        peer.journal.bind({"files": Input("0", "1", (make_place("a.csv"),))}, Generation(1), peer.writer)
    site.runtime.advance_s(TTL_S + 1)
    assert len(site.host().journal.read_from(0)) == 1


# C10: a full disk


def test_c10_the_disk_is_full_during_a_fragment_or_a_record() -> None:
    """With any amount of room: the error names the path, no bound transaction is lost, and work continues once there is
    room.

    Fails if a bind that did not happen leaves a fragment closed.
    """
    refused: set[str] = set()
    for room in range(0, 3000, 97):
        disk = SimulatedDisk(ManualRuntime())
        host = Host(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime)
        host.bind_rows(0)
        disk.capacity_bytes = disk.used_bytes + room
        staged = []
        try:
            staged.append(host.stage(1))
            host.bind({"push": (1, staged)})
        except StorageFull as error:
            refused.add("fragment" if error.path.startswith("/disk/journal/push/") else error.path)
            assert host.rows_bound() == [0]
            disk.capacity_bytes = None
            host.bind({"push": (1, staged or [host.stage(1)])})
        assert disk.runtime.slept_s == (), "a full disk is not retried"
        disk.capacity_bytes = None
        disk.runtime.advance_s(TTL_S + 1)
        fresh = Host(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime)
        fresh.journal.drop_unbound(fresh.writer)
        assert fresh.rows_bound() == [0, 1]
        assert len(fresh.staged_blobs()) == 2
    assert refused == {"fragment", "simulated:journal"}
