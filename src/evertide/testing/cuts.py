"""`every_cut`: let the power go at each operation of a workload, and look what is left.

1. `build()` makes a fresh disk, with whatever must be on it before. What it does is not cut.
2. `workload(disk, acknowledge)` runs once to the end, to learn its operations. It calls `acknowledge(x)` for what it
   tells the outside world: from that moment x must never be lost.
3. Then, for each operation, for the power going before it and right after it, and for each kind of survivors: `build`
   again, run the workload until the power goes, reboot, and call `check(disk, acknowledged)`, which raises if the disk
   is not as it must be. The end of the workload is one more moment, as what it did last may not be durable.
4. A cut right after an operation that only looks is left out: it is the cut before the next one, with less to demand.
5. A cut run must do what the first run did up to the cut, or nothing was shown: the logs are compared. A workload with
   several threads cannot promise that; `repeatable=False` takes the cut wherever the number falls.

A failure names its operation, the kind of survivors, the last operations, and the call of `one_cut` that repeats it. To
cut a recovery as well, let `build` run the workload into a cut and reboot, and take the recovery for the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evertide.testing.disk import Operation, PowerCut, SimulatedDisk, Survivors

__all__ = ["SURVIVORS", "CutsFailed", "every_cut", "one_cut"]

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
    """Some cuts left the disk as it must not be. `failures` are the errors, each with its cut as a note."""

    def __init__(self, failures: Sequence[BaseException], cases: int) -> None:
        self.failures = tuple(failures)
        self.cases = cases
        super().__init__(f"{len(failures)} of {cases} power cuts failed:\n\n" + "\n\n".join(map(_told, failures)))


def every_cut(
    build: Build,
    workload: Workload[T],
    check: Check[T],
    *,
    survivors: Sequence[Survivors] = SURVIVORS,
    every: int = 1,
    repeatable: bool = True,
) -> int:
    """Try all cuts, or those at every k-th operation and at the end. Returns how many; raises `CutsFailed`.

    It gives up after a few failures: they tend to be the same one.
    """
    first, whole = _rehearse(build, workload)
    failures: list[BaseException] = []
    cases = 0
    for cut in _cuts(first, whole, survivors, every):
        cases += 1
        try:
            _run(build, workload, check, cut, whole if repeatable else None)
        except (Exception, PowerCut) as error:  # noqa: BLE001 - whatever it is, it is reported with its cut
            failures.append(error)
        if len(failures) == _FAILURES_MAX:
            break
    if failures:
        raise CutsFailed(failures, cases)
    return cases


def one_cut(
    build: Build, workload: Workload[T], check: Check[T], number: int, *, after: bool, survivors: Survivors
) -> None:
    """The one case, as `every_cut` ran it: `number` is that of the operation in the disk's log."""
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
            raise PowerCut("nobody hears an acknowledgement once the power is off")
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
    except (Exception, PowerCut):  # with the power off it is the cut, or what that became on its way up
        if disk.is_on:
            raise
    disk.cut()


def _compare(log: Sequence[Operation], expected: Sequence[Operation]) -> None:
    for found, wanted in zip(log, expected, strict=False):
        if found != wanted:
            raise AssertionError(f"the workload is not repeatable: first it did {wanted}, now {found}")
    if len(log) != len(expected):
        raise AssertionError(f"the workload is not repeatable: {len(expected)} operations at first, now {len(log)}")


def _told(error: BaseException) -> str:
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
