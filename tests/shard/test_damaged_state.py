"""Damaged records of a shard: the error names the record and a remedy, and the process deletes nothing (I12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    Damaged,
    EvertideError,
    RecordDamaged,
    StorageForbidden,
)
from evertide.store import Write
from evertide.store.paths import beat_key, lease_key, writer_key
from evertide.types import Time
from tests.shard.damage_kit import NAME, TIMES, Place, by_name, check_error_names, flip_byte, make_noise
from tests.shard.hosts import HookedBlob, HookedMeta, Host, Memory, changes, content_of

# Records


def damage_diff(place: Place) -> str:
    place.sql(
        "UPDATE log SET data = ? WHERE key = 'shard/a' AND seqno = 6", flip_byte(read_record(place, "shard/a", 6), 30)
    )
    return "meta.db:shard/a #6"


def cut_diff(place: Place) -> str:
    place.sql("UPDATE log SET data = ? WHERE key = 'shard/a' AND seqno = 7", b"\x01\x02")
    return "meta.db:shard/a #7"


def other_diff(place: Place) -> str:
    """A valid record of another time: its checksum is right, and it does not fit the state."""
    place.sql("UPDATE log SET data = ? WHERE key = 'shard/a' AND seqno = 6", read_record(place, "shard/a", 7))
    return "meta.db:shard/a #6"


def lose_diffs(place: Place) -> str:
    place.sql("DELETE FROM log WHERE key = 'shard/a' AND seqno <= 6")
    return "meta.db:shard/a"


def lose_all_diffs(place: Place) -> str:
    place.sql("DELETE FROM log WHERE key = 'shard/a'")
    return "meta.db:shard/a"


def damage_address(place: Place) -> str:
    place.sql("UPDATE log SET data = ? WHERE key = 'rollup/a'", flip_byte(read_record(place, "rollup/a", 1), 12))
    return "meta.db:rollup/a"


def cut_rollup(place: Place) -> str:
    place.rollup().write_bytes(place.rollup().read_bytes()[:-7])
    return str(place.rollup())


def randomize_rollup(place: Place) -> str:
    place.rollup().write_bytes(make_noise(place.rollup().stat().st_size))
    return str(place.rollup())


def lose_rollup(place: Place) -> str:
    path = place.rollup()
    path.unlink()
    return str(path)


def read_record(place: Place, key: str, seqno: int) -> bytes:
    [found] = [record for record in place.storages[0].meta.scan(key) if record.seqno == seqno]
    return found.data


STATE_DAMAGE: list[tuple[Callable[[Place], str], type[Damaged]]] = [
    (damage_diff, RecordDamaged),
    (cut_diff, RecordDamaged),
    (other_diff, RecordDamaged),
    (lose_diffs, RecordDamaged),
    (lose_all_diffs, RecordDamaged),
    (damage_address, RecordDamaged),
    (cut_rollup, BlobDamaged),
    (randomize_rollup, BlobDamaged),
    (lose_rollup, BlobMissing),
]


@pytest.mark.parametrize(("damage", "kind"), STATE_DAMAGE, ids=by_name)
def test_opening_a_damaged_shard_reports_the_damage(
    place: Place, damage: Callable[[Place], str], kind: type[Damaged]
) -> None:
    """F2. Creating the shard again is refused as well: missing state is damage, never a new shard."""
    where = damage(place)
    before = place.read_durable_state()
    host = place.process()
    shard = host.shards._shard(NAME)
    acts: list[Callable[[], object]] = [
        host.open,
        host.create,
        lambda: shard.upper,
        lambda: content_of(shard, TIMES - 1),
        lambda: shard.compare_and_append(changes({7: 1}, TIMES), TIMES, TIMES + 1, host.writer),
        lambda: shard.compact(host.writer),
        lambda: shard.collect_garbage(host.writer),
        lambda: shard.log.roll_up(host.writer),
        lambda: shard.finalize(host.writer),
        shard.inspect,
    ]
    for act in acts:
        with pytest.raises(kind) as found:
            act()
        check_error_names(found.value, where)
    assert place.read_durable_state() == before


SEEN_BY_ALL = [damage_diff, cut_diff, lose_all_diffs, damage_address, cut_rollup, randomize_rollup, lose_rollup]


@pytest.mark.parametrize(("damage", "kind"), [pair for pair in STATE_DAMAGE if pair[0] in SEEN_BY_ALL], ids=by_name)
def test_a_collector_that_knows_the_state_still_deletes_nothing(
    place: Place, damage: Callable[[Place], str], kind: type[Damaged]
) -> None:
    """I12. The collecting process has the state in memory, and no other process can read it any more.

    It would truncate the diffs that the damaged roll-up no longer covers, and delete the previous roll-up.
    """
    assert place.shard.compact(place.host.writer)
    place.host.writer.beat()
    where = damage(place)
    before = place.read_durable_state()
    with pytest.raises(kind) as found:
        place.shard.collect_garbage(place.host.writer)
    check_error_names(found.value, where)
    assert place.read_durable_state() == before


@pytest.mark.parametrize("damage", [damage_diff, cut_rollup, randomize_rollup, lose_rollup], ids=by_name)
def test_a_process_with_the_state_continues_after_a_failed_garbage_collection(
    place: Place, damage: Callable[[Place], str]
) -> None:
    """I12: garbage collection reports the damage and deletes nothing, and the pipeline continues: the failed read does
    not drop the state in memory.
    """
    damage(place)
    with pytest.raises(Damaged):
        place.shard.collect_garbage(place.host.writer)
    place.host.append(place.shard, {77: 1})
    assert place.shard.upper == TIMES + 1
    assert content_of(place.shard, TIMES) == {**dict.fromkeys(range(TIMES), 1), 77: 1}


# Garbage collection with unreadable records


def collect_with_failure(at: int, error: EvertideError | None) -> tuple[list[str], Memory, Host, set[str]]:
    """A garbage collection with many blobs to delete, whose operation number `at` fails."""
    memory = Memory()
    dead = memory.host()
    shard = dead.create()
    for time in range(TIMES):
        dead.append(shard, {time: 1})
    assert shard.log.roll_up(dead.writer)
    assert shard.compact(dead.writer)
    assert shard.log.roll_up(dead.writer)
    memory.blob.put(f"parts/a/{dead.writer.id}-00000099-p0.parquet", b"an orphan")
    dead.shards.leases.take(shard.log, Time(0))
    memory.runtime.advance_s(61.0)
    said: list[str] = []

    def before(operation: str, key: str) -> None:
        said.append(operation)
        if error is not None and len(said) == at:
            raise error

    host = memory.host()
    same = host.open()
    same.log.blob, same.log.meta = HookedBlob(memory.blob, before), HookedMeta(memory.meta, before)
    host.writer._meta = same.log.meta
    there = host.blobs()
    if error is None:
        same.collect_garbage(host.writer)
    else:
        with pytest.raises(type(error)):
            same.collect_garbage(host.writer)
    return said, memory, host, there


def test_a_garbage_collection_that_cannot_read_a_record_deletes_nothing() -> None:
    """I12, one run per operation of a garbage collection. Fails if orphans are deleted before the leases are read."""
    said, _, _, before = collect_with_failure(0, None)
    first = said.index("delete") + 1
    assert said.count("delete") > TIMES
    assert {"list", "list_unfinished", "heads", "head", "scan", "commit"} <= set(said[: first - 1])
    for at in range(1, len(said) + 1):
        error = StorageForbidden(path="there", why="refused")
        done, memory, host, there = collect_with_failure(at, error)
        if at < first:
            assert host.blobs() == there == before, f"operation {at}: {done}"
            assert memory.meta.scan("shard/a")[0].seqno == 1
        shard = host.open()
        assert len(content_of(shard, TIMES - 1)) == TIMES
        host.writer._meta = memory.meta
        shard.collect_garbage(host.writer)
        memory.runtime.advance_s(
            host.settings.writer_ttl_s / 2
        )  # until then a failed heartbeat is evidence that others are alive
        shard.collect_garbage(host.writer)
        assert len(host.blobs("parts")) == 1
        assert len(content_of(host.open(), TIMES - 1)) == TIMES


@pytest.mark.parametrize("key", ["writer", "beat", "lease"])
def test_a_damaged_record_of_a_writer_or_reader_stops_garbage_collection(key: str) -> None:
    memory = Memory()
    host, other = memory.host(), memory.host()
    shard = host.create()
    for time in range(TIMES):
        host.append(shard, {time: 1})
    assert shard.compact(host.writer)
    name = {"writer": writer_key(other.writer.id), "beat": beat_key(other.writer.id), "lease": lease_key(NAME, "00")}
    found = memory.meta.head(name[key])
    memory.meta.commit([Write(name[key], found.seqno if found else 0, b"\x01 not what it was")])
    before = host.blobs()
    with pytest.raises(RecordDamaged) as damaged:
        shard.collect_garbage(host.writer)
    check_error_names(damaged.value, f"memory:{name[key]}")
    assert host.blobs() == before
    host.append(shard, {77: 1})
    assert len(content_of(shard, TIMES)) == TIMES + 1, "the pipeline continues"
