"""C7: a power cut at every operation of publishing and collecting, on a disk that loses data that was not synced.

After each cut the old or the new checkpoint restores completely, and never an older one than was acknowledged. Then a
checkpoint is published and collected, after which no file is left over and none is missing. `EVERTIDE_POWER=full` tries
every operation with every kind of survivors.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.meta_restore import is_lost
from evertide.checkpoint.repair import repair
from evertide.store import LocalBlob
from evertide.store.paths import CHECKPOINTS
from tests.checkpoint.kit import SHARDS, TTL_S, Process
from tests.kit.cuts import SURVIVORS, CutsFailed, every_cut
from tests.kit.disk import SimulatedDisk, Survivors
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, content_of

FULL = os.environ.get("EVERTIDE_POWER") == "full"
SAMPLES: list[tuple[Survivors, int]] = [("none", 1), ("all", 11), ("names", 7), (1, 5), (2, 9)]


def start(disk: SimulatedDisk) -> Process:
    return Process(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime)


def build() -> SimulatedDisk:
    """A disk with one checkpoint, of a process that died."""
    disk = SimulatedDisk(ManualRuntime(seed=1))
    process = start(disk)
    process.create()
    process.step()
    process.publish()
    disk.runtime.advance_s(TTL_S + 1)
    return disk


def workload(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
    process = start(disk)
    acknowledge(process.restored_time())
    process.step()
    acknowledge(process.publish().time)
    process.merge()
    process.collect_garbage()
    process.step()
    acknowledge(process.publish().time)
    process.collect_garbage()
    process.checkpoints.release(process.writer)


def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    disk.runtime.advance_s(TTL_S + 1)
    process = start(disk)
    done = acknowledged[-1] if acknowledged else 1
    found = process.restored_time()
    assert found in (done, done + 1), f"{done} was acknowledged, but {found} is restored"
    while process.upper > found:  # the transactions after the checkpoint run through the engine again
        process.add_part([found])
        found += 1
    process.step()
    assert process.publish().time == found + 1
    process.merge()
    process.publish()
    process.publish()
    for _ in range(2):  # the first garbage collection finds that the hold has ended
        process.collect_garbage()
    check_tidy(process)


def check_tidy(process: Process) -> None:
    named = set()
    for entry in process.checkpoints.entries():
        named |= set(process.checkpoints.verify(entry, shards=True).names())
    there = process.blobs("state") | process.blobs("checkpoints")
    there |= {key for prefix in ("state", "checkpoints") for key in process.blob.list_unfinished(prefix)}
    assert there == {key for key in named if not key.startswith("parts/")}, "a file leaked or was lost"


@pytest.mark.parametrize(("survivors", "every"), [(kind, 1) for kind in SURVIVORS] if FULL else SAMPLES, ids=str)
def test_c7_power_cut_at_every_operation(survivors: Survivors, every: int) -> None:
    assert every_cut(build, workload, check, survivors=[survivors], every=every) > 25


def test_c7_the_check_detects_a_commit_before_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of I11, reversed."""

    class Hasty(LocalBlob):
        def put(self, key: str, data: bytes) -> None:
            path = self._root / key
            self._make_directories(path.parent)
            self._files.rename(self._write_temporary(path, data), path)

    monkeypatch.setattr("tests.checkpoint.test_power_cuts.LocalBlob", Hasty)
    with pytest.raises(CutsFailed, match=r"CheckpointDamaged|BlobMissing"):
        every_cut(build, workload, check, survivors=["none"], every=5)


def test_c7_the_check_detects_leftover_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.checkpoint.garbage._is_over", lambda *_: False)
    with pytest.raises(CutsFailed, match="a file leaked or was lost"):
        every_cut(build, workload, check, survivors=["none"], every=40)


def without(disk: SimulatedDisk, keys: Callable[[str], bool]) -> SimulatedDisk:
    """A disk whose Meta lost some keys."""
    log = disk._records.kept._log
    for key in [key for key in log if keys(key)]:
        del log[key]
    disk.runtime.advance_s(TTL_S + 1)
    return disk


def two_checkpoints() -> SimulatedDisk:
    disk = build()
    process = start(disk)
    process.restored_time()
    process.step()
    process.publish()
    process.step()
    return disk


def lost_catalog() -> SimulatedDisk:
    return without(two_checkpoints(), lambda key: key == CHECKPOINTS)


def lost_meta() -> SimulatedDisk:
    return without(two_checkpoints(), lambda _key: True)


def repair_and_acknowledge(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
    repair(place_of(disk))
    acknowledge(1)


def place_of(disk: SimulatedDisk) -> StorageContext:
    return StorageContext(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime, SETTINGS)


@pytest.mark.parametrize("damaged", [lost_catalog, lost_meta])
def test_c7_an_interrupted_repair_can_be_repeated(damaged: Callable[[], SimulatedDisk]) -> None:
    """A power cut at every operation of the repair. A repair deletes nothing, so a second one always finds the same."""

    def check_repaired(disk: SimulatedDisk, acknowledged: list[int]) -> None:
        disk.runtime.advance_s(TTL_S + 1)
        place = place_of(disk)
        if not acknowledged:
            repair(place)
        assert not is_lost(place.meta)
        process = start(disk)
        assert process.restored_time() == 2
        for name in SHARDS:
            shard = process.shard(name)
            assert content_of(shard, 1) == {0: 1, 1: 1}

    assert every_cut(damaged, repair_and_acknowledge, check_repaired, survivors=["none"], every=1 if FULL else 5) > 10
