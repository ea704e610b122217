"""C10: the disk is full during a file, the manifest, the catalog or a hold. The error says so, and work continues with
room.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evertide.checkpoint.records import read_catalog
from evertide.errors import StorageFull
from evertide.store import LocalBlob
from tests.checkpoint.kit import SHARDS, TTL_S, Process
from tests.checkpoint.test_power_cuts import check_tidy
from tests.kit.disk import SimulatedDisk
from tests.kit.runtime import ManualRuntime


class Full:
    """A process with a checkpoint, on a disk whose free space the test sets."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(ManualRuntime())
        self.process = self.reopen()
        self.process.create()
        self.process.step()
        self.process.publish()
        self.process.step()

    def reopen(self) -> Process:
        return Process(LocalBlob(self.disk.root, self.disk.files), self.disk.meta, self.disk.runtime)

    def leave(self, room_bytes: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + room_bytes

    def make_room(self) -> None:
        self.disk.capacity_bytes = None


def run_refused(work: Callable[[], object]) -> StorageFull | None:
    try:
        work()
    except StorageFull as error:
        return error
    return None


def test_c10_while_a_checkpoint_is_published() -> None:
    """For every amount of free space, from none to enough: the error names what does not fit, and the old checkpoint
    stays.

    Fails if `put_settled` retries on a full disk: it then waits for half a minute.
    """
    named: list[str] = []
    room = 0
    while True:
        full = Full()
        full.leave(room)
        error = run_refused(full.process.publish)
        if error is None:
            break
        assert "Free some space" in str(error)
        named.append(error.path.rpartition("/")[2].rpartition(":")[2])
        assert full.disk.runtime.slept_s == (), "a full disk is not retried"
        assert [entry.number for entry in full.process.checkpoints.entries()] == [1]
        full.make_room()
        assert full.process.publish().time == 2
        full.process.collect_garbage()
        check_tidy(full.process)
        full.disk.runtime.advance_s(TTL_S + 1)
        fresh = full.reopen()
        assert fresh.restored_time() == 2
        room += 1 if room < 2 else 131
    order = list(dict.fromkeys(named))
    files = ["checkpoints", "orders.state", "revenue.state", "manifest.json", "checkpoints"]
    assert [name for name in order if name in files] == files[:-1], order
    assert named[0] == named[-1] == "checkpoints", "the claim and the catalog were both refused"


def test_c10_a_state_part_that_does_not_fit_is_an_error() -> None:
    full = Full()
    full.leave(0)
    error = run_refused(full.process.merge)
    assert error is not None
    assert "state/by_customer" in error.path
    full.make_room()
    full.process.merge()
    assert full.process.publish().time == 2


def test_c10_garbage_collection_makes_room_even_while_a_claim_cannot_be_released() -> None:
    """People collect garbage when the disk is full. Fails if the process's own claim, which has ended, still counts
    (`_is_open`).
    """
    full = Full()
    process = full.process
    process.merge()
    for name in SHARDS:
        assert process.shard(name).compact(process.writer)
    for _ in range(2):
        process.publish()
    full.leave(400)
    assert run_refused(process.publish) is not None
    assert process.writer.id in read_catalog(process.blob, process.meta)[1].claims
    parts, files = process.collect_garbage()
    assert parts
    assert {key for key in files if key.startswith("checkpoints/00000001/")}, "the dropped checkpoint is deleted"
    for name in SHARDS:
        assert process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins).parts
    full.make_room()
    process.publish()
    process.collect_garbage()
    check_tidy(process)


def test_c10_a_restore_without_room_for_its_hold_is_an_error() -> None:
    full = Full()
    full.disk.runtime.advance_s(TTL_S + 1)
    fresh = full.reopen()
    full.leave(0)
    with pytest.raises(StorageFull, match="restoring/"):
        fresh.restore()
    full.make_room()
    assert fresh.restored_time() == 1
