"""`check` finds every kind of damage in one run, names it with a remedy, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.fsck import Report, check
from evertide.checkpoint.records import manifest_key
from evertide.checkpoint.verification import Progress
from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.journal.records import Bound, Committed, Input, Staged
from evertide.store import MemoryMeta, Write, open_storage
from evertide.store.meta import seal
from evertide.store.open import open_for_repair
from evertide.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    FORMAT,
    GENERATION,
    JOURNAL,
    STORAGE,
    Name,
    beat_key,
    checkpoint_key,
    hold_key,
    restoring_key,
    rollup_key,
    shard_key,
    staged_key,
    state_part_key,
    writer_key,
)
from evertide.types import Generation, Time
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process, Watched, each_step
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS

STAGED = staged_key("http", Name("00000000000000aa", 3, "arrow"))
GARBAGE = b"\x01" + b"garbage!" * 4


class Whole(Memory):
    """A sound storage with every kind of object."""

    def __init__(self) -> None:
        super().__init__()
        self.blob.put(FORMAT, b"1\n")
        for seqno in range(2):
            self.meta.commit([Write(STORAGE, seqno, b"1\n")])
        self.process_one = self.start_process(2)
        self.process_one.writer.change_generation(list(SHARDS))
        self.entry = self.process_one.publish()
        self.rollup = self.process_one.shard("orders").log.roll_up(self.process_one.writer)
        self.process_one.restore()
        self.bind(0, committed=True)
        self.bind(1, committed=False)

    def bind(self, time: int, *, committed: bool) -> None:
        rows = b"rows that no client sends again"
        key = STAGED.replace("03.arrow", f"{time:02}.arrow")
        self.blob.put(key, rows)
        staged = Staged("orders", key, 1, len(rows), xxhash.xxh3_128_hexdigest(rows))
        bound = Bound(Time(time), Generation(1), {"http": Input("0", "1", (staged,))}, "w", f"{time}", 0.0)
        self.meta.commit([Write(JOURNAL, time, seal(bound))])
        if committed:
            self.meta.commit([Write(COMMITTED, time, seal(Committed(Time(time), {}, {}, "w")))])

    def check(self) -> Report:
        return check(self.place())


@pytest.fixture
def whole() -> Whole:
    return Whole()


def test_a_sound_storage_has_no_problems(whole: Whole) -> None:
    told: list[Progress] = []
    report = check(whole.place(), told.append)
    assert report.is_sound
    assert (report.problems, report.orphans, report.unknown_orphans) == ((), (), False)
    assert (report.shards, report.checkpoints, report.transactions) == (2, 1, 2)
    assert report.files == told[-1].files == told[-1].files_all
    assert report.bytes == told[-1].bytes_all


Damage = Callable[[Whole], str]
"""Causes the damage, and returns what the path of the problem must contain."""


def lose_blob(key: Callable[[Whole], str]) -> Damage:
    def damage(whole: Whole) -> str:
        found = key(whole)
        whole.blob.delete(found)
        return found

    return damage


def replace_blob(key: Callable[[Whole], str]) -> Damage:
    def damage(whole: Whole) -> str:
        whole.corrupt(key(whole))
        return key(whole)

    return damage


def replace_record(key: Callable[[Whole], str]) -> Damage:
    def damage(whole: Whole) -> str:
        whole.put_record(key(whole), GARBAGE)
        return key(whole)

    return damage


def lose_record(key: Callable[[Whole], str]) -> Damage:
    def damage(whole: Whole) -> str:
        whole.forget(key(whole))
        return key(whole)

    return damage


def a_part(whole: Whole) -> str:
    return min(whole.process_one.blobs("parts/orders"))


def a_rollup(whole: Whole) -> str:
    assert whole.rollup is not None
    return whole.rollup.key


def a_state_part(whole: Whole) -> str:
    return whole.process_one.parts[0].key


def unbound(_whole: Whole) -> str:
    return STAGED.replace("03.arrow", "01.arrow")


def own(whole: Whole) -> str:
    return whole.process_one.writer.id


DAMAGE: dict[str, Damage] = {
    "FORMAT missing": lose_blob(lambda _: FORMAT),
    "FORMAT damaged": replace_blob(lambda _: FORMAT),
    "part missing": lose_blob(a_part),
    "part damaged": replace_blob(a_part),
    "roll-up missing": lose_blob(a_rollup),
    "roll-up damaged": replace_blob(a_rollup),
    "state part missing": lose_blob(a_state_part),
    "state part damaged": replace_blob(a_state_part),
    "staged rows missing": lose_blob(unbound),
    "staged rows damaged": replace_blob(unbound),
    "manifest missing": lose_blob(lambda _: manifest_key(1)),
    "manifest damaged": replace_blob(lambda _: manifest_key(1)),
    "file of a checkpoint missing": lose_blob(lambda _: checkpoint_key(1, "state.bin")),
    "file of a checkpoint damaged": replace_blob(lambda _: checkpoint_key(1, "orders.state")),
    "storage record missing": lose_record(lambda _: STORAGE),
    "log missing": lose_record(lambda _: shard_key("revenue")),
    "log damaged": replace_record(lambda _: shard_key("revenue")),
    "holds missing": lose_record(lambda _: hold_key("orders")),
    "holds damaged": replace_record(lambda _: hold_key("orders")),
    "roll-up's address damaged": replace_record(lambda _: rollup_key("orders")),
    "generation damaged": replace_record(lambda _: GENERATION),
    "journal damaged": replace_record(lambda _: JOURNAL),
    "committed damaged": replace_record(lambda _: COMMITTED),
    "catalog missing": lose_record(lambda _: CHECKPOINTS),
    "catalog damaged": replace_record(lambda _: CHECKPOINTS),
    "hold damaged": replace_record(lambda whole: restoring_key(own(whole))),
    "writer damaged": replace_record(lambda whole: writer_key(own(whole))),
    "beat damaged": replace_record(lambda whole: beat_key(own(whole))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_every_kind_of_damage_is_found_and_nothing_is_changed(whole: Whole, name: str) -> None:
    where = DAMAGE[name](whole)
    before = {entry.key: whole.blob.get(entry.key) for entry in whole.blob.list("")}
    records = {key: list(log) for key, log in whole.meta._log.items()}
    report = whole.check()
    assert [problem for problem in report.problems if where in problem.path], report.problems
    for problem in report.problems:
        assert problem.kind
        assert problem.why
        assert problem.remedy.endswith(".")
        assert problem.path in str(problem)
    assert not report.is_sound
    assert {entry.key: whole.blob.get(entry.key) for entry in whole.blob.list("")} == before
    assert {key: list(log) for key, log in whole.meta._log.items()} == records
    assert report.orphans == (), "a damaged owner does not make its objects orphans"


def test_all_damage_is_reported_at_once(whole: Whole) -> None:
    names = ["part missing", "state part damaged", "staged rows missing", "generation damaged", "FORMAT damaged"]
    places = [DAMAGE[name](whole) for name in names]
    problems = whole.check().problems
    assert [where for where in places if not any(where in problem.path for problem in problems)] == []


def test_missing_rows_of_a_committed_transaction_are_no_problem(whole: Whole) -> None:
    whole.blob.delete(unbound(whole).replace("01.arrow", "00.arrow"))
    assert whole.check().is_sound


def test_a_lost_meta_is_one_problem_with_its_remedy(whole: Whole) -> None:
    whole.forget()
    report = whole.check()
    [problem] = report.problems
    assert "storage" in problem.path
    assert "--repair" in problem.remedy
    assert report.unknown_orphans


def test_only_blobs_of_ended_writers_are_orphans(whole: Whole) -> None:
    peer = whole.process()
    peer.merge()
    gone = Name("00000000000000aa", 9, "parquet")
    orphans = {f"parts/orders/{gone}", f"rollups/orders/{gone}", state_part_key("x", gone), f"journal/http/{gone}"}
    orphans.add(checkpoint_key(5, "state.bin"))
    for key in {*orphans, "parts/orders/readme.txt", "somewhere/else", "lost+found/parts/x"}:
        whole.blob.put(key, b"?")
    report = whole.check()
    assert report.is_sound
    assert set(report.orphans) == orphans
    whole.runtime.advance_s(TTL_S + 1)
    peer.writer.unregister()
    assert set(whole.check().orphans) == orphans | peer.live()


# On a directory


def make(root: Path, runtime: ManualRuntime) -> None:
    storage = open_storage(root, runtime=runtime, settings=SETTINGS)
    process = Process(storage.blob, storage.meta, runtime)
    process.create()
    process.step()
    process.publish()
    process.writer.unregister()
    storage.close()


def test_c4_a_check_does_not_create_a_missing_meta_db(tmp_path: Path) -> None:
    """Fails with `change=True`: an empty file exists afterwards, and hides what happened."""
    runtime = ManualRuntime()
    make(tmp_path, runtime)
    for path in tmp_path.glob("meta.db*"):
        path.unlink()
    with pytest.raises(RecordDamaged, match=r"meta\.db"):
        open_storage(tmp_path, runtime=runtime, settings=SETTINGS)
    storage = open_for_repair(tmp_path, runtime=runtime, settings=SETTINGS, change=False)
    assert isinstance(storage.meta, MemoryMeta)
    report = check(StorageContext(storage.blob, storage.meta, runtime, SETTINGS))
    assert len(report.problems) == 1
    assert not list(tmp_path.glob("meta.db*"))


def test_a_sound_directory_has_no_problems(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    make(tmp_path, runtime)
    storage = open_for_repair(tmp_path, runtime=runtime, settings=SETTINGS, change=False)
    assert check(StorageContext(storage.blob, storage.meta, runtime, SETTINGS)).is_sound
    storage.close()


def test_a_newer_format_is_not_checked(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    make(tmp_path, runtime)
    (tmp_path / FORMAT).write_bytes(b"2\n")
    with pytest.raises(UnsupportedFormat):
        open_for_repair(tmp_path, runtime=runtime, settings=SETTINGS, change=False)


def test_a_pipeline_that_runs_during_the_check_is_not_reported_as_damage() -> None:
    """The pipeline publishes, compacts and collects between any two reads. Fails if a problem is not checked a second
    time.
    """

    def run(at: int) -> int:
        whole = Whole()
        process = whole.process_one

        def move_on() -> None:
            for _ in range(2):
                process.merge()
                process.publish()
            for name in SHARDS:
                process.shard(name).compact(process.writer)
                process.shard(name).log.roll_up(process.writer)
                process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins)
            process.publish()
            process.publish()
            for _ in range(2):  # the first garbage collection finds that the hold has ended
                process.collect_garbage()
            for name in SHARDS:
                process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins)

        watched = Watched(whole, at, move_on)
        reports: list[Report] = []
        watched.run(lambda one: reports.append(check(one.place)))
        assert reports[0].problems == ()
        assert reports[0].orphans == ()
        return watched.count

    each_step(run, least=30)
