"""C7: the power goes at every operation of publishing and collecting, on a disk that forgets what nobody synced.

After each cut the old or the new checkpoint restores completely, and never an older one than was acknowledged. Then it
goes on: a checkpoint is published and collected, after which no file is left over and none is missing.
`EVERTIDE_POWER=full` tries every operation with every kind of survivors.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.repair import repair
from evertide.checkpoint.revival import is_lost
from evertide.store import LocalBlob
from evertide.store.paths import CHECKPOINTS
from evertide.testing import CutsFailed, ManualRuntime, SimulatedDisk, Survivors, every_cut
from evertide.testing.cuts import SURVIVORS
from tests.checkpoint.kit import SHARDS, TTL_S, Process
from tests.shard.test_log import SETTINGS, content_of

FULL = os.environ.get("EVERTIDE_POWER") == "full"
SAMPLES: list[tuple[Survivors, int]] = [("none", 1), ("all", 11), ("names", 7), (1, 5), (2, 9)]


def start(disk: SimulatedDisk) -> Process:
    return Process(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime)


def build() -> SimulatedDisk:
    """One checkpoint is there, of a process that died."""
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
    process.collect()
    process.step()
    acknowledge(process.publish().time)
    process.collect()
    process.checkpoints.release(process.writer)


def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    disk.runtime.advance_s(TTL_S + 1)
    process = start(disk)
    done = acknowledged[-1] if acknowledged else 1
    found = process.restored_time()
    assert found in (done, done + 1), f"{done} was acknowledged, {found} is restored"
    while process.upper > found:  # what came after the checkpoint runs through the engine again
        process.add_part([found])
        found += 1
    process.step()
    assert process.publish().time == found + 1
    process.merge()
    process.publish()
    process.publish()
    for _ in range(2):  # the first one finds that the hold is over
        process.collect()
    check_tidy(process)


def check_tidy(process: Process) -> None:
    named = set()
    for entry in process.checkpoints.entries():
        named |= set(process.checkpoints.verify(entry, shards=True).names())
    there = process.blobs("state") | process.blobs("checkpoints")
    there |= {key for prefix in ("state", "checkpoints") for key in process.blob.unfinished(prefix)}
    assert there == {key for key in named if not key.startswith("parts/")}, "leaked, or lost"


@pytest.mark.parametrize(("survivors", "every"), [(kind, 1) for kind in SURVIVORS] if FULL else SAMPLES, ids=str)
def test_c7_power_cut_at_every_operation(survivors: Survivors, every: int) -> None:
    assert every_cut(build, workload, check, survivors=[survivors], every=every) > 25


def test_c7_a_commit_before_its_files_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of I11, turned round."""

    class Hasty(LocalBlob):
        def put(self, key: str, data: bytes) -> None:
            path = self._root / key
            self._make_directories(path.parent)
            self._files.rename(self._write_temporary(path, data), path)

    monkeypatch.setattr("tests.checkpoint.test_c7.LocalBlob", Hasty)
    with pytest.raises(CutsFailed, match=r"CheckpointDamaged|BlobMissing"):
        every_cut(build, workload, check, survivors=["none"], every=5)


def test_c7_leftovers_that_nobody_collects_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.checkpoint.garbage._is_over", lambda *_: False)
    with pytest.raises(CutsFailed, match="leaked, or lost"):
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


def repaired(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
    repair(place_of(disk))
    acknowledge(1)


def place_of(disk: SimulatedDisk) -> StorageContext:
    return StorageContext(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime, SETTINGS)


@pytest.mark.parametrize("damaged", [lost_catalog, lost_meta])
def test_c7_a_repair_that_is_cut_short_is_repeated(damaged: Callable[[], SimulatedDisk]) -> None:
    """At every operation of it. Nothing is ever deleted, so what is found afterwards is always the same."""

    def checked(disk: SimulatedDisk, acknowledged: list[int]) -> None:
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

    assert every_cut(damaged, repaired, checked, survivors=["none"], every=1 if FULL else 5) > 10
