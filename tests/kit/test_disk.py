"""Other tests rely on the simulated disk, so each rule of its model is tested here."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from evertide.errors import OutcomeUnknown, StorageFull, Unexpected
from evertide.store.blobs.file_system import Files, SystemFiles
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Guard, Stale, Write
from evertide.types import SequenceNumber
from tests.kit.disk import PowerCut, SimulatedDisk, Survivors
from tests.kit.runtime import ManualRuntime, RandomStream

DATA = b"0123456789" * 10
SEEDS = range(200)


def content_of(disk: SimulatedDisk, name: str) -> bytes | None:
    path = disk.root / name
    return disk.files.read(path) if disk.files.exists(path) else None


def outcomes(act: Callable[[SimulatedDisk], None], *names: str, seeds: range = SEEDS) -> set[tuple[bytes | None, ...]]:
    """Every content that these names may have after a power cut."""
    found = set()
    everyone: list[Survivors] = ["none", "all", "names", *seeds]
    for survivors in everyone:
        disk = SimulatedDisk()
        act(disk)
        disk.reboot(survivors)
        found.add(tuple(content_of(disk, name) for name in names))
    return found


def write(disk: SimulatedDisk, name: str, data: bytes = DATA, *syncs: str) -> None:
    disk.files.write_new(disk.root / name, data)
    if "file" in syncs:
        disk.files.sync(disk.root / name)
    if "directory" in syncs:
        disk.files.sync_directory(disk.root)


# Rule 1: bytes and names


def test_without_any_sync_every_outcome_is_possible() -> None:
    found = {data for (data,) in outcomes(lambda disk: write(disk, "a"), "a")}
    assert {None, b"", DATA, bytes(len(DATA))} <= found
    assert any(data and data != DATA and DATA.startswith(data) for data in found), "torn"
    assert any(data and len(data) == len(DATA) and data not in (DATA, bytes(len(DATA))) for data in found), "garbage"


def test_a_synced_file_without_its_directory_is_complete_or_absent() -> None:
    assert outcomes(lambda disk: write(disk, "a", DATA, "file"), "a") == {(None,), (DATA,)}


def test_a_synced_directory_without_its_file_has_the_name_and_any_bytes() -> None:
    found = {data for (data,) in outcomes(lambda disk: write(disk, "a", DATA, "directory"), "a")}
    assert None not in found
    assert {b"", DATA} < found


def test_a_file_synced_with_its_directory_always_survives() -> None:
    assert outcomes(lambda disk: write(disk, "a", DATA, "file", "directory"), "a") == {(DATA,)}


def test_a_removal_is_durable_with_its_directory_only() -> None:
    def remove(disk: SimulatedDisk) -> None:
        write(disk, "a", DATA, "file", "directory")
        disk.files.unlink(disk.root / "a")

    def remove_durably(disk: SimulatedDisk) -> None:
        remove(disk)
        disk.files.sync_directory(disk.root)

    assert outcomes(remove, "a") == {(None,), (DATA,)}
    assert outcomes(remove_durably, "a") == {(None,)}


# Rule 2: directories


def test_a_directory_is_a_name_in_its_parent() -> None:
    def nested(disk: SimulatedDisk) -> None:
        disk.files.make_directory(disk.root / "d")
        write(disk, "d/a", DATA, "file")
        disk.files.sync_directory(disk.root / "d")

    def durable(disk: SimulatedDisk) -> None:
        nested(disk)
        disk.files.sync_directory(disk.root)

    assert outcomes(nested, "d/a") == {(None,), (DATA,)}
    assert outcomes(durable, "d/a") == {(DATA,)}


# Rule 3: renames


def replace(disk: SimulatedDisk) -> None:
    write(disk, "old", b"old", "file")
    write(disk, "new", b"new", "file", "directory")
    disk.files.rename(disk.root / "new", disk.root / "old")


def test_a_rename_is_atomic() -> None:
    assert outcomes(replace, "old", "new") == {(b"old", b"new"), (b"new", None)}


def test_a_rename_is_durable_with_its_directory() -> None:
    def durable(disk: SimulatedDisk) -> None:
        replace(disk)
        disk.files.sync_directory(disk.root)

    assert outcomes(durable, "old", "new") == {(b"new", None)}


def test_a_chain_of_renames_leaves_one_name() -> None:
    def chain(disk: SimulatedDisk) -> None:
        write(disk, "a", DATA, "file", "directory")
        disk.files.rename(disk.root / "a", disk.root / "b")
        disk.files.rename(disk.root / "b", disk.root / "c")

    assert outcomes(chain, "a", "b", "c") == {(DATA, None, None), (None, DATA, None), (None, None, DATA)}


def test_a_reused_name_does_not_lose_the_file_that_was_renamed_from_it() -> None:
    def take_again(disk: SimulatedDisk) -> None:
        write(disk, "a", b"first", "file", "directory")
        disk.files.rename(disk.root / "a", disk.root / "b")
        write(disk, "a", b"second", "file")

    assert outcomes(take_again, "a", "b") == {(b"first", None), (None, b"first"), (b"second", b"first")}


def test_unrelated_names_survive_in_any_combination() -> None:
    def several(disk: SimulatedDisk) -> None:
        for name in "ab":
            write(disk, name, DATA, "file")

    assert outcomes(several, "a", "b") == {(a, b) for a in (None, DATA) for b in (None, DATA)}


def test_a_rename_stays_in_its_directory() -> None:
    disk = SimulatedDisk()
    with pytest.raises(ValueError, match="stays in its directory"):
        disk.files.rename(disk.root / "a", disk.root / "d" / "a")


# Rule 4: a sync that failed


@pytest.mark.parametrize(("op", "syncs"), [("sync", ("directory", "file")), ("sync_directory", ("file", "directory"))])
def test_repeating_a_failed_sync_succeeds_but_makes_nothing_durable(op: str, syncs: tuple[str, str]) -> None:
    disk = SimulatedDisk()
    disk.fail_next(op, OSError(errno.EIO, "io"))
    with pytest.raises(OSError, match="io"):
        write(disk, "a", DATA, *syncs)
    disk.files.sync(disk.root / "a")
    disk.files.sync_directory(disk.root)
    assert content_of(disk, "a") == DATA, "before the cut the content looks right"
    disk.reboot("none")
    assert content_of(disk, "a") != DATA


def test_a_refused_sync_had_no_effect_and_may_be_repeated() -> None:
    disk = SimulatedDisk()
    disk.files.write_new(disk.root / "a", DATA)
    for sync, path in ((disk.files.sync, disk.root / "a"), (disk.files.sync_directory, disk.root)):
        disk.fail_next("sync*", OSError(errno.EACCES, "refused"))
        with pytest.raises(OSError, match="refused"):
            sync(path)
        sync(path)
    disk.reboot("none")
    assert content_of(disk, "a") == DATA


def test_writing_again_after_a_failed_sync_is_durable() -> None:
    def write_again(disk: SimulatedDisk) -> None:
        write(disk, "a.tmp", DATA, "file")
        disk.files.rename(disk.root / "a.tmp", disk.root / "a")
        disk.fail_next("sync_directory", OSError(errno.EIO, "io"))
        with pytest.raises(OSError, match="io"):
            disk.files.sync_directory(disk.root)
        write(disk, "a.tmp", DATA, "file")
        disk.files.rename(disk.root / "a.tmp", disk.root / "a")
        disk.files.sync_directory(disk.root)

    assert outcomes(write_again, "a", "a.tmp") == {(DATA, None)}


# Rule 5: Meta


def test_a_truncation_may_be_undone_until_the_next_commit() -> None:
    def seqnos(survivors: Survivors, *, commit: bool) -> list[int]:
        disk = SimulatedDisk()
        for number in range(3):
            assert disk.meta.commit([Write("k", number, b"x")]) is None
        disk.meta.truncate("k", 3)
        assert [record.seqno for record in disk.meta.scan("k")] == [3]
        if commit:
            assert disk.meta.commit([Write("other", 0, b"x")]) is None
        disk.reboot(survivors)
        return [record.seqno for record in disk.meta.scan("k")]

    assert seqnos("none", commit=False) == [1, 2, 3]
    assert seqnos("all", commit=False) == [3]
    assert {len(seqnos(seed, commit=False)) for seed in range(20)} == {1, 3}
    assert seqnos("none", commit=True) == [3]


def test_meta_behaves_like_the_model() -> None:
    """Random commits, removals, guards and truncations, with reboots in between that undo no truncation."""
    rng = RandomStream(11)
    disk, model = SimulatedDisk(), MemoryMeta(ManualRuntime())
    for step in range(600):
        key, other, below = f"k{rng.below(4)}", f"k{rng.below(4)}", rng.below(6)
        head = model.head(key)
        expected = rng.below(4) if head is None or rng.below(4) == 0 else head.seqno
        write = Write(key, expected, None if rng.below(8) == 0 else bytes([step % 256]))
        guards = [Guard(other, rng.below(4))] if step % 3 == 0 else []
        if step % 5 == 0:
            disk.meta.truncate(key, below)
            model.truncate(key, below)
        else:
            assert disk.meta.commit([write], guards) == model.commit([write], guards)
        if step % 50 == 0:
            disk.reboot("all")
        assert disk.meta.heads("") == model.heads("")
        for found in range(4):
            for limit in (None, 1, 2):
                assert disk.meta.scan(f"k{found}", below, limit) == model.scan(f"k{found}", below, limit)
    assert model.heads("")


def test_a_stale_commit_makes_no_truncation_durable() -> None:
    disk = SimulatedDisk()
    for number in range(2):
        disk.meta.commit([Write("k", number, b"x")])
    disk.meta.truncate("k", 2)
    assert disk.meta.commit([Write("k", 0, b"x")]) == Stale("k", 0, SequenceNumber(2))
    disk.reboot("none")
    assert len(disk.meta.scan("k")) == 2


def test_a_commit_that_writes_a_key_twice_is_refused_as_by_every_meta() -> None:
    with pytest.raises(Unexpected):
        SimulatedDisk().meta.commit([Write("k", 0, b"x"), Write("k", 0, b"y")])


# Rule 6: the cut


@pytest.mark.parametrize("after", [False, True])
def test_the_power_is_cut_before_or_after_the_effect_of_an_operation(after: bool) -> None:
    disk = SimulatedDisk()
    disk.cut_at(2, after=after)
    disk.files.exists(disk.root)
    with pytest.raises(PowerCut, match="2 write_new"):
        write(disk, "a")
    assert not disk.is_on
    disk.reboot("all")
    assert content_of(disk, "a") == (DATA if after else None)


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_that_was_cut_happened_as_a_whole_or_not_at_all(after: bool) -> None:
    disk = SimulatedDisk()
    disk.cut_at(1, after=after)
    with pytest.raises(PowerCut):
        disk.meta.commit([Write("a", 0, b"x"), Write("b", 0, b"y")])
    disk.reboot("none" if after else "all")
    assert list(disk.meta.heads("")) == (["a", "b"] if after else [])


def test_a_dead_process_stays_dead_after_the_reboot() -> None:
    disk = SimulatedDisk()
    files, meta = disk.files, disk.meta
    disk.cut()
    with pytest.raises(PowerCut):
        disk.files.exists(disk.root)
    with pytest.raises(PowerCut):
        disk.meta.head("k")
    disk.reboot()
    done = len(disk.log)
    with pytest.raises(PowerCut):
        files.exists(disk.root)
    with pytest.raises(PowerCut):
        meta.commit([Write("k", 0, b"x")])
    assert len(disk.log) == done
    assert disk.files.exists(disk.root)


def test_a_handler_of_exceptions_does_not_catch_the_cut() -> None:
    disk = SimulatedDisk()
    disk.cut()
    with pytest.raises(PowerCut), contextlib.suppress(Exception):
        disk.files.read(disk.root / "a")


def test_the_power_can_be_cut_after_an_operation_that_fails() -> None:
    disk = SimulatedDisk()
    disk.cut_at(1, after=True)
    with pytest.raises(PowerCut):
        disk.files.read(disk.root / "missing")


def test_a_cut_at_a_past_operation_is_refused() -> None:
    disk = SimulatedDisk()
    disk.files.exists(disk.root)
    with pytest.raises(ValueError, match="is over"):
        disk.cut_at(1, after=False)


def test_a_wait_ends_at_a_commit_and_at_the_cut() -> None:
    class Patient(ManualRuntime):
        def wait_s(self, condition: threading.Condition, seconds: float) -> None:
            condition.wait(10)

    disk = SimulatedDisk(Patient())
    answers: list[object] = []

    def wait(after: int) -> None:
        try:
            answers.append(disk.meta.wait("k", after, 1000.0))
        except PowerCut:
            answers.append("cut")

    def commit() -> None:
        disk.meta.commit([Write("k", 0, b"x")])

    for end in (commit, disk.cut):
        done = len(disk.log)
        waiter = threading.Thread(target=wait, args=(len(answers),))
        waiter.start()
        while len(disk.log) == done:
            pass
        end()
        waiter.join(5)
    assert answers == [True, "cut"]


# Rule 7: what survived is durable


@pytest.mark.parametrize("survivors", ["none", "all", "names", 1, 2, 3])
def test_a_second_cut_changes_nothing(survivors: Survivors) -> None:
    disk = SimulatedDisk()
    for name in "abcdef":
        write(disk, name)
    disk.reboot(survivors)
    first = {name: content_of(disk, name) for name in "abcdef"}
    disk.reboot("none")
    assert {name: content_of(disk, name) for name in "abcdef"} == first


# Rule 8: the full disk


def test_a_file_that_does_not_fit_is_cut_off() -> None:
    disk = SimulatedDisk(capacity_bytes=150)
    write(disk, "a")
    with pytest.raises(OSError, match="No space") as full:
        write(disk, "b")
    assert full.value.errno == errno.ENOSPC
    assert content_of(disk, "b") == DATA[:50]
    assert disk.used_bytes == 150
    disk.files.unlink(disk.root / "b")
    disk.files.make_directory(disk.root / "d")
    disk.capacity_bytes = 200
    write(disk, "d/b")
    assert content_of(disk, "d/b") == DATA


def test_a_commit_that_does_not_fit_does_not_happen() -> None:
    disk = SimulatedDisk(capacity_bytes=100)
    assert disk.meta.commit([Write("a", 0, b"x" * 60)]) is None
    with pytest.raises(StorageFull):
        disk.meta.commit([Write("b", 0, b"x" * 20), Write("a", 1, b"x" * 30)])
    assert [record.seqno for record in disk.meta.heads("").values()] == [1]
    write(disk, "file", b"x" * 40)
    with pytest.raises(StorageFull):
        disk.meta.commit([Write("a", 1, None)])
    disk.capacity_bytes = None
    assert disk.meta.commit([Write("b", 0, b"x" * 20), Write("a", 1, b"x" * 30)]) is None


# Faults


def test_a_fault_affects_only_the_next_matching_operation() -> None:
    disk = SimulatedDisk()
    disk.fail_next("write_new *.parquet", OSError(errno.EROFS, "read-only"), times=2)
    write(disk, "a")
    for _ in range(2):
        with pytest.raises(OSError, match="read-only"):
            write(disk, "b.parquet")
    assert content_of(disk, "b.parquet") is None
    write(disk, "b.parquet")
    disk.fail_next("*", OSError(errno.EACCES, "forbidden"))
    disk.heal()
    write(disk, "c")


def test_a_fault_can_occur_after_the_effect() -> None:
    disk = SimulatedDisk()
    disk.fail_next("meta.commit", OutcomeUnknown(path="k", why="the connection broke"), after=True)
    with pytest.raises(OutcomeUnknown):
        disk.meta.commit([Write("k", 0, b"x")])
    head = disk.meta.head("k")
    assert head is not None
    assert head.data == b"x"


# Rule 9, and the calls themselves


def test_every_operation_is_in_the_log() -> None:
    disk = SimulatedDisk()
    write(disk, "a", DATA, "file")
    disk.meta.commit([Write("k", 0, b"xyz"), Write("l", 0, None)])
    disk.meta.head("k")
    assert [str(operation) for operation in disk.log] == [
        "1 write_new /disk/a (100 bytes)",
        "2 sync /disk/a",
        "3 meta.commit k l (3 bytes)",
        "4 meta.head k",
    ]
    assert [operation.changes for operation in disk.log] == [True, True, True, False]


def test_files_behave_like_the_operating_system(tmp_path: Path) -> None:
    """Random calls on both, errors included: the simulation must not be more lenient than the machine."""
    rng = RandomStream(5)
    disk = SimulatedDisk()
    seen = set()
    for step in range(3000):
        name, other = _random_path(rng), _random_path(rng)
        data = bytes([step % 256]) * rng.below(50)
        op = _OPS[rng.below(len(_OPS))]

        if op in ("sync", "size", "rename") and (tmp_path / name).is_dir():
            continue  # legal on the machine, but useless here
        simulated = _answer(disk.files, op, disk.root / name, other, data)
        real = _answer(SystemFiles(), op, tmp_path / name, other, data)
        assert simulated == real, (step, op, name, other)
        seen.add((op, isinstance(real, int)))
        if step % 100 == 0:
            disk.reboot("all")
    assert len(seen) == 2 * len(_OPS) - 1, "each call succeeded and failed, except exists, which never fails"


_OPS = (
    *("read", "read_range", "write_new", "sync", "rename", "sync_directory"),
    *("unlink", "make_directory", "list_directory", "exists", "size"),
)


def _random_path(rng: RandomStream) -> Path:
    names = ("a", "b", "c", "d")
    return Path(*(names[rng.below(len(names))] for _ in range(1 + rng.below(3))))


def _answer(files: Files, op: str, path: Path, other: Path, data: bytes) -> object:
    """The result in a tuple, or the errno of the error."""
    more = {"write_new": (data,), "rename": (path.with_name(other.name),), "read_range": (7, 20)}.get(op, ())
    try:
        found = getattr(files, op)(path, *more)
    except OSError as error:
        return error.errno
    return (sorted(found),) if op == "list_directory" else (found,)
