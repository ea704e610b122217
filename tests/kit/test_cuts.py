"""`every_cut` finds the classic mistakes, accepts the right protocol, and says how to repeat a failure."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from evertide.store.meta import Record, Write
from tests.kit.cuts import SURVIVORS, CutsFailed, every_cut, one_cut
from tests.kit.disk import PowerCut, SimulatedDisk
from tests.kit.runtime import ManualRuntime

DATA = b"0123456789" * 10
NAMES = ("a", "b")
RIGHT = "write sync rename sync_directory"


def build() -> SimulatedDisk:
    return SimulatedDisk(ManualRuntime(seed=1))


def writer(steps: str) -> Callable[[SimulatedDisk, Callable[[str], None]], None]:
    """Puts two files by these steps, each on the temporary name until the rename and on the final one after it."""

    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        files = disk.files
        for name in NAMES:
            path = disk.root / f"{name}.tmp"
            for step in steps.split():
                if step == "write":
                    files.write_new(path, DATA)
                elif step == "write_in_place":
                    path = disk.root / name
                    files.write_new(path, DATA)
                elif step == "sync":
                    files.sync(path)
                elif step == "rename":
                    files.rename(path, disk.root / name)
                    path = disk.root / name
                else:
                    files.sync_directory(disk.root)
            acknowledge(name)

    return workload


def check_complete_or_absent(disk: SimulatedDisk, acknowledged: list[str]) -> None:
    for name in NAMES:
        if disk.files.exists(disk.root / name):
            assert disk.files.read(disk.root / name) == DATA, f"{name} is torn"
        else:
            assert name not in acknowledged, f"{name} is lost"


# What it detects


def test_the_right_protocol_passes_at_every_cut() -> None:
    cases = every_cut(build, writer(RIGHT), check_complete_or_absent)
    assert cases == (8 * 2 + 1) * len(SURVIVORS), "before and after each of 2 x 4 operations, and the end"


@pytest.mark.parametrize(
    ("steps", "symptom"),
    [
        pytest.param("write rename sync_directory", "is torn", id="no sync of the file"),
        pytest.param("write sync rename", "is lost", id="no sync of the directory"),
        pytest.param("write rename sync sync_directory", "is torn", id="sync after the rename"),
        pytest.param("write sync sync_directory rename", "is lost", id="sync of the directory before the rename"),
        pytest.param("write_in_place sync sync_directory", "is torn", id="no temporary name"),
    ],
)
def test_a_broken_writer_is_detected(steps: str, symptom: str) -> None:
    with pytest.raises(CutsFailed, match=symptom):
        every_cut(build, writer(steps), check_complete_or_absent)


def test_the_end_of_the_workload_is_a_cut_of_its_own() -> None:
    """Without the directory's sync, and with one file, no later operation would show the loss."""

    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        disk.files.write_new(disk.root / "a", DATA)
        disk.files.sync(disk.root / "a")
        acknowledge("a")

    with pytest.raises(CutsFailed, match="the end of the workload") as failed:
        every_cut(build, workload, check_complete_or_absent, survivors=["none"])
    assert len(failed.value.failures) == 1


# Meta


def test_commits_are_complete_or_absent_and_durable_once_acknowledged() -> None:
    def workload(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
        for number in range(4):
            writes = [Write("a", number, bytes([number])), Write("b", number, bytes([number]))]
            assert disk.meta.commit(writes) is None
            acknowledge(number + 1)
            disk.meta.truncate("a", number)
        assert disk.meta.commit([Write("b", 4, None), Write("c", 0, b"")]) is None
        acknowledge(5)

    def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
        meta = disk.meta
        last = 5 if meta.head("c") else _seqno(meta.head("a"))
        assert last >= max(acknowledged, default=0)
        assert last <= max(acknowledged, default=0) + 1
        assert _seqno(meta.head("a")) == min(last, 4)
        assert _seqno(meta.head("b")) == (0 if last == 5 else last)
        kept = [record.seqno for record in meta.scan("a")]
        assert kept == list(range(kept[0], min(last, 4) + 1)) if kept else last == 0
        assert not kept or kept[0] <= max(1, last - 1), "a truncation removed more than requested"

    assert every_cut(build, workload, check) > 50


def test_a_record_that_names_a_file_before_it_is_durable_is_detected() -> None:
    def workload(order: str) -> Callable[[SimulatedDisk, Callable[[str], None]], None]:
        def run(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
            for step in order.split():
                if step == "name":
                    disk.meta.commit([Write("named", 0, b"")])
                else:
                    writer(RIGHT)(disk, lambda _: None)
            acknowledge("a")

        return run

    def check(disk: SimulatedDisk, acknowledged: list[str]) -> None:
        if disk.meta.head("named") or acknowledged:
            check_complete_or_absent(disk, [*NAMES])

    every_cut(build, workload("put name"), check)
    with pytest.raises(CutsFailed, match="is lost"):
        every_cut(build, workload("name put"), check)


def _seqno(record: Record | None) -> int:
    return record.seqno if record else 0


# What it reports


def test_a_failure_names_its_cut_and_can_be_repeated() -> None:
    workload = writer("write rename sync sync_directory")
    with pytest.raises(CutsFailed) as failed:
        every_cut(build, workload, check_complete_or_absent, survivors=["names"])
    text = str(failed.value)
    assert "Power cut right after operation 2 rename /disk/a.tmp -> /disk/a, survivors='names'." in text
    assert "one_cut(build, workload, check, 2, after=True, survivors='names')" in text
    assert "1 write_new /disk/a.tmp (100 bytes)" in text
    with pytest.raises(AssertionError, match="a is torn") as again:
        one_cut(build, workload, check_complete_or_absent, 2, after=True, survivors="names")
    assert "\n".join(again.value.__notes__) in text
    one_cut(build, workload, check_complete_or_absent, 2, after=False, survivors="names")


def test_every_reported_failure_fails_again_alone() -> None:
    workload = writer("write rename sync_directory")
    with pytest.raises(CutsFailed) as failed:
        every_cut(build, workload, check_complete_or_absent)
    for failure in failed.value.failures:
        call = next(line for line in "".join(failure.__notes__).splitlines() if "one_cut(" in line)
        names = {"one_cut": one_cut, "build": build, "workload": workload, "check": check_complete_or_absent}
        with pytest.raises(AssertionError, match=str(failure).splitlines()[0]):
            eval(call.partition("Again: ")[2], names)


def test_every_kth_operation_and_always_the_end() -> None:
    cut: list[int] = []

    def check(disk: SimulatedDisk, acknowledged: list[str]) -> None:
        cut.append(len(disk.log))

    assert every_cut(build, writer(RIGHT), check, survivors=["none"], every=3) == 7
    assert cut == [1, 1, 4, 4, 7, 7, 8]


def test_reads_are_cut_before_only() -> None:
    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        disk.files.exists(disk.root)
        disk.meta.head("k")

    assert every_cut(build, workload, check_complete_or_absent, survivors=["none"]) == 3


def test_operations_of_build_are_not_cut() -> None:
    def built() -> SimulatedDisk:
        disk = build()
        writer(RIGHT)(disk, lambda _: None)
        return disk

    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        acknowledge("a")
        disk.files.sync_directory(disk.root)

    assert every_cut(built, workload, check_complete_or_absent, survivors=["none"]) == 3


# Invalid workloads and checks


def test_a_workload_that_is_not_repeatable_is_refused() -> None:
    runs: list[str] = []

    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        runs.append("x")
        disk.files.write_new(disk.root / f"run-{len(runs)}", DATA)

    with pytest.raises(CutsFailed, match="not repeatable: first it did 1 write_new /disk/run-1"):
        every_cut(build, workload, lambda _disk, _acknowledged: None)
    assert every_cut(build, workload, lambda _disk, _acknowledged: None, repeatable=False) == 3 * len(SURVIVORS)


def test_a_failure_of_the_workload_itself_is_a_failure() -> None:
    runs: list[str] = []

    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        runs.append("x")
        if len(runs) > 1:
            raise RuntimeError("a bug of its own")
        disk.files.exists(disk.root)

    with pytest.raises(CutsFailed, match="a bug of its own"):
        every_cut(build, workload, check_complete_or_absent)


def test_an_acknowledgement_after_the_cut_does_not_count() -> None:
    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        try:
            disk.files.write_new(disk.root / "a", DATA)
            disk.files.sync(disk.root / "a")
            disk.files.sync_directory(disk.root)
        finally:
            acknowledge("a")

    def check(disk: SimulatedDisk, acknowledged: list[str]) -> None:
        assert not acknowledged or disk.files.read(disk.root / "a") == DATA

    every_cut(build, workload, check)


def test_a_check_on_a_dead_process_is_a_failure_too() -> None:
    def workload(disk: SimulatedDisk, acknowledge: Callable[[object], None]) -> None:
        acknowledge(disk.files)
        disk.files.exists(disk.root)

    def check(disk: SimulatedDisk, acknowledged: list[object]) -> None:
        acknowledged[0].exists(disk.root)  # type: ignore[attr-defined]

    with pytest.raises(CutsFailed, match="PowerCut"):
        every_cut(build, workload, check)


def test_threads_are_cut_at_the_operation_with_the_number() -> None:
    def workload(disk: SimulatedDisk, acknowledge: Callable[[str], None]) -> None:
        def put(name: str) -> None:
            files, temporary = disk.files, disk.root / f"{name}.tmp"
            files.write_new(temporary, DATA)
            files.sync(temporary)
            files.rename(temporary, disk.root / name)
            files.sync_directory(disk.root)
            acknowledge(name)

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(put, name) for name in NAMES]:
                future.result()

    assert every_cut(build, workload, check_complete_or_absent, repeatable=False) == 17 * len(SURVIVORS)


# Determinism


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_log_and_the_same_survivors(seed: int) -> None:
    def fill(disk: SimulatedDisk) -> None:
        for _ in range(10):
            name = disk.runtime.new_id()
            disk.files.write_new(disk.root / name, DATA)
            disk.meta.commit([Write(name, 0, DATA)])
            disk.meta.truncate(name, 1)

    def run() -> tuple[object, ...]:
        disk = SimulatedDisk(ManualRuntime(seed))
        disk.cut_at(23, after=True)
        with pytest.raises(PowerCut):
            fill(disk)
        log = disk.log
        disk.reboot(seed)
        entries = sorted(disk.files.list_directory(disk.root))
        return log, [(entry, disk.files.read(disk.root / entry.name)) for entry in entries], disk.meta.heads("")

    first = run()
    assert run() == first
    assert len(first[0]) == 23  # type: ignore[arg-type]
