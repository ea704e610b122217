"""`every_cut`: cuts the power at each operation of a workload, and checks the disk after the reboot.

1. `build()` creates a new disk with its initial content. Its operations are not cut.
2. `workload(disk, acknowledge)` runs once to the end, to record its operations. It calls `acknowledge(x)` when it
   confirms x to a client: from then on x must not be lost.
3. Then, for each operation, for a cut before and after it, and for each kind of survivors: `build` a disk, run the
   workload until the cut, reboot, and call `check(disk, acknowledged)`, which raises if the content is wrong. There is
   also a cut after the last operation, whose effect may not be durable.
4. A cut after an operation that only reads is omitted: it is the same as the cut before the next operation.
5. Up to the cut, a run must do the same operations as the first run: the logs are compared. A workload with several
   threads is not repeatable; with `repeatable=False` the logs are not compared.

A failure names its operation, the kind of survivors, the last operations, and the call of `one_cut` that repeats it. To
cut a recovery as well, let `build` run the workload until a cut and reboot, and pass the recovery as the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.kit.disk import Operation, PowerCut, SimulatedDisk, Survivors

SURVIVORS: tuple[Survivors, ...] = ("none", "all", "names", 1, 2, 3)

_FAILURES_MAX = 10
_LAST_OPERATIONS = 12

T = TypeVar("T")
Build = Callable[[], SimulatedDisk]
Workload = Callable[[SimulatedDisk, Callable[[T], None]], None]
Check = Callable[[SimulatedDisk, list[T]], None]


@dataclass(frozen=True, slots=True)
class _Cut:
    number: int
    after: bool
    survivors: Survivors

    def note(self, log: Sequence[Operation]) -> str:
        at = log[self.number - 1] if self.number <= len(log) else "the end of the workload"
        again = f"one_cut(build, workload, check, {self.number}, after={self.after}, survivors={self.survivors!r})"
        last = "".join(f"\n    {operation}" for operation in log[-_LAST_OPERATIONS:])
        return (
            f"Power cut {'right after' if self.after else 'before'} operation {at}, survivors={self.survivors!r}.\n"
            f"  Again: {again}\n  The last operations before the cut:{last}"
        )


class CutsFailed(AssertionError):
    """`check` failed after some cuts. `failures` are the errors, each with its cut as a note."""

    def __init__(self, failures: Sequence[BaseException], cases: int) -> None:
        self.failures = tuple(failures)
        self.cases = cases
        super().__init__(f"{len(failures)} of {cases} power cuts failed:\n\n" + "\n\n".join(map(_describe, failures)))


def every_cut(
    build: Build,
    workload: Workload[T],
    check: Check[T],
    *,
    survivors: Sequence[Survivors] = SURVIVORS,
    every: int = 1,
    offset: int = 0,
    repeatable: bool = True,
) -> int:
    """Try the cuts at every `every`-th operation, after the first `offset` ones, and at the end. Returns their number;
    raises `CutsFailed`.

    It stops after `_FAILURES_MAX` failures, since they mostly have the same cause.
    """
    first, whole = _rehearse(build, workload)
    first += offset
    failures: list[BaseException] = []
    cases = 0
    for cut in _cuts(first, whole, survivors, every):
        cases += 1
        try:
            _run(build, workload, check, cut, whole if repeatable else None)
        except (Exception, PowerCut) as error:  # noqa: BLE001 - any error is reported with its cut
            failures.append(error)
        if len(failures) == _FAILURES_MAX:
            break
    if failures:
        raise CutsFailed(failures, cases)
    return cases


def one_cut(
    build: Build, workload: Workload[T], check: Check[T], number: int, *, after: bool, survivors: Survivors
) -> None:
    """Repeat one case of `every_cut`. `number` is that of the operation in the disk's log."""
    _run(build, workload, check, _Cut(number, after, survivors), None)


def _rehearse(build: Build, workload: Workload[T]) -> tuple[int, tuple[Operation, ...]]:
    """The number of the workload's first operation, and the log up to its last."""
    disk = build()
    first = len(disk.log) + 1
    workload(disk, lambda _: None)
    if not disk.is_on:
        raise ValueError("the workload cuts the power itself; leave that to every_cut")
    return first, disk.log


def _cuts(first: int, whole: Sequence[Operation], survivors: Sequence[Survivors], every: int) -> Iterator[_Cut]:
    for operation in whole[first - 1 :: every]:
        for survivor in survivors:
            yield _Cut(operation.number, after=False, survivors=survivor)
            if operation.changes:
                yield _Cut(operation.number, after=True, survivors=survivor)
    for survivor in survivors:
        yield _Cut(len(whole) + 1, after=False, survivors=survivor)


def _run(build: Build, workload: Workload[T], check: Check[T], cut: _Cut, whole: Sequence[Operation] | None) -> None:
    disk = build()
    disk.cut_at(cut.number, after=cut.after)
    acknowledged: list[T] = []

    def acknowledge(what: T) -> None:
        if not disk.is_on:
            raise PowerCut("the power is off: no client receives an acknowledgement")
        acknowledged.append(what)

    log: tuple[Operation, ...] = ()
    try:
        _until_cut(disk, workload, acknowledge)
        log = disk.log
        if whole is not None:
            _compare(log, whole[: cut.number])
        disk.reboot(cut.survivors)
        check(disk, acknowledged)
    except BaseException as error:
        error.add_note(cut.note(log or disk.log))
        raise


def _until_cut(disk: SimulatedDisk, workload: Workload[T], acknowledge: Callable[[T], None]) -> None:
    try:
        workload(disk, acknowledge)
    except (Exception, PowerCut):  # if the power is off, the cut is the cause
        if disk.is_on:
            raise
    disk.cut()


def _compare(log: Sequence[Operation], expected: Sequence[Operation]) -> None:
    for found, wanted in zip(log, expected, strict=False):
        if found != wanted:
            raise AssertionError(f"the workload is not repeatable: first it did {wanted}, now {found}")
    if len(log) != len(expected):
        raise AssertionError(f"the workload is not repeatable: {len(expected)} operations at first, now {len(log)}")


def _describe(error: BaseException) -> str:
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
