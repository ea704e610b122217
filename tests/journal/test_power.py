"""A power cut at every operation of everything that the journal does, on a disk that loses data that was not synced.

After each cut a new process ends the dead one, and finds what was bound, or that and the one step in progress. Every
fragment that a record names exists and is complete; the shard has exactly the transactions that the journal has as
committed. Then the process continues, after which no staged blob is left over and none is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from evertide.journal.garbage import truncate
from evertide.journal.records import Bound, Committed, Staged
from evertide.journal.staging import list_staged
from evertide.journal.time_log import TimeLog
from evertide.shard.shard import Shard
from evertide.store import Blob, LocalBlob
from evertide.store.paths import JOURNAL
from evertide.store.writers import Writer
from tests.journal.kit import TTL_S, Host, rows_in
from tests.kit.cuts import CutsFailed, every_cut
from tests.kit.disk import SimulatedDisk, Survivors
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import HookedMeta, content_of


class Process(Host):
    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime)
        self.staged: list[Staged] = []

    @property
    def shard(self) -> Shard:
        return self.create("a")

    def add(self, *numbers: int) -> None:
        self.staged.append(self.stage(*numbers))

    def bind_staged(self) -> None:
        self.bind({"push": (1, self.staged)})
        self.staged = []

    def records(self) -> list[Bound]:
        log = TimeLog(JOURNAL, Bound, self.meta, self.runtime, self.settings)
        return [record.value for record in log.read_all()]


@dataclass(frozen=True)
class Model:
    """The expected content: rows per time, how many are committed, and from which time on records are kept."""

    bound: tuple[tuple[int, ...], ...] = ()
    committed: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Step:
    act: Callable[[Process], object]
    after: Model = field(default_factory=Model)


ONE = ((1, 2, 3),)
TWO = (*ONE, (4,))
THREE = (*TWO, (5, 6))

STEPS: Sequence[Step] = [
    Step(lambda p: p.add(1, 2)),
    Step(lambda p: p.add(3)),
    Step(lambda p: p.bind_staged(), Model(ONE)),
    Step(lambda p: p.add(4), Model(ONE)),
    Step(lambda p: p.bind_staged(), Model(TWO)),
    Step(lambda p: p.commit(p.shard), Model(TWO, 1)),
    Step(lambda p: p.add(5, 6), Model(TWO, 1)),
    Step(lambda p: p.add(7), Model(TWO, 1)),
    Step(lambda p: p.journal.drop([p.staged.pop()], p.writer), Model(TWO, 1)),
    Step(lambda p: p.commit(p.shard), Model(TWO, 2)),
    Step(lambda p: p.journal.truncate(1, p.writer), Model(TWO, 2, 1)),
    Step(lambda p: p.bind_staged(), Model(THREE, 2, 1)),
    Step(lambda p: p.journal.drop_unbound(p.writer), Model(THREE, 2, 1)),
    Step(lambda p: p.commit(p.shard), Model(THREE, 3, 1)),
    Step(lambda p: p.journal.truncate(3, p.writer), Model(THREE, 3, 2)),
]


def build() -> SimulatedDisk:
    """A writer that died and left a fragment that no record names, and one that it had not finished."""
    disk = SimulatedDisk(ManualRuntime(seed=1))
    dead = Process(disk)
    kept, torn = dead.stage(99), dead.stage(98)
    assert kept.key != torn.key
    disk.files.rename(disk.root / torn.key, disk.root / f"{torn.key}.tmp")
    disk.files.sync_directory((disk.root / torn.key).parent)
    disk.runtime.advance_s(TTL_S + 1)
    return disk


def workload(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
    process = Process(disk)
    for number, step in enumerate(STEPS, 1):
        step.act(process)
        acknowledge(number)


def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    disk.runtime.advance_s(TTL_S + 1)
    process = Process(disk)
    done = acknowledged[-1] if acknowledged else 0
    before = STEPS[done - 1].after if done else Model()
    model = STEPS[done].after if done < len(STEPS) else before
    found = process.records()
    assert len(before.bound) <= process.journal.upper <= len(model.bound), "a bound transaction was lost"
    check_complete(process, model, found)
    committed = process.journal.committed_upper
    assert before.committed <= committed <= model.committed
    assert process.shard.upper == committed, "the shard and its commit record agree"
    first = min((bound.time for bound in found), default=0)
    assert first in (before.kept, model.kept) or first < model.kept, "a truncation may not be durable yet"
    assert first <= model.kept, "a record that must be kept is missing"
    continue_work(process)


def check_complete(process: Process, model: Model, found: Sequence[Bound]) -> None:
    for bound in found:
        assert rows_in(process.journal, bound) == list(model.bound[bound.time]), bound.time


def continue_work(process: Process) -> None:
    """The fragments of the dead process are dropped; their rows are sent again, bound, committed and truncated."""
    process.journal.drop_unbound(process.writer)
    check_tidy(process)
    process.add(10)
    process.bind_staged()
    assert rows_in(process.journal, process.records()[-1]) == [10]
    upper = process.journal.upper
    while process.commit(process.shard) < upper - 1:
        pass
    assert content_of(process.shard, upper - 1) == dict.fromkeys(range(upper), 1)
    process.journal.truncate(upper, process.writer)
    assert [bound.time for bound in process.records()] == [upper - 1]
    check_tidy(process)


def check_tidy(process: Process) -> None:
    named = {fragment.key for bound in process.records() for fragment in list_staged(bound)}
    there = process.staged_blobs() | set(process.blob.list_unfinished("journal/"))
    assert there == named, "a blob leaked or was lost"


@pytest.mark.parametrize("survivors", ["none", "all", "names", 1, 2], ids=str)
def test_power_cut_at_every_operation(survivors: Survivors) -> None:
    """Also J2 and J9: a cut after each fragment of a transaction of several, and between two transactions."""
    assert every_cut(build, workload, check, survivors=[survivors], every=1 if survivors == "none" else 3) > 60


def test_the_check_detects_blobs_deleted_before_the_truncation_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without step 4 of `truncate` the power cut restores the record, and its blob is deleted."""
    beat = Writer.beat
    beats: list[int] = []

    def first_only(writer: Writer) -> None:
        beats.append(1)
        if len(beats) % 2:
            beat(writer)

    def careless(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
        beats.clear()
        monkeypatch.setattr(Writer, "beat", first_only)
        try:
            process = Process(disk)
            for number, step in enumerate(STEPS[:11], 1):
                step.act(process)
                acknowledge(number)
        finally:
            monkeypatch.setattr(Writer, "beat", beat)

    with pytest.raises(CutsFailed, match=r"blob .* is missing"):
        every_cut(build, careless, check, survivors=["none"])


def test_the_check_detects_fragments_deleted_before_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of `truncate`, reversed."""

    def hasty(
        blob: Blob, bound: TimeLog[Bound], committed: TimeLog[Committed], below: int, writer: Writer
    ) -> list[str]:
        for record in bound.read_all()[:-1]:
            for fragment in list_staged(record.value) if record.value.time < below else ():
                blob.delete(fragment.key)
        return truncate(blob, bound, committed, below, writer)

    monkeypatch.setattr("evertide.journal.garbage.truncate", hasty)
    with pytest.raises(CutsFailed, match=r"blob .* is missing"):
        every_cut(build, workload, check, survivors=["all"])


def test_a_record_that_a_power_cut_restores_has_its_blob() -> None:
    """A peer's truncation was not durable when this process read it, and the power fails right after it dropped the
    named blob.

    Fails without the second heartbeat in `drop_unbound`.
    """
    disk = SimulatedDisk(ManualRuntime(seed=1))
    peer = Process(disk)
    for number in (1, 2):
        peer.add(number)
        peer.bind_staged()
    peer.writer.beat()

    def before(operation: str, key: str) -> None:
        if (operation, key) == ("scan", JOURNAL):
            peer.meta.truncate(JOURNAL, 2)

    host = Host(LocalBlob(disk.root, disk.files), HookedMeta(disk.meta, before), disk.runtime)
    assert len(host.journal.drop_unbound(host.writer)) == 1
    disk.reboot("none")
    fresh = Process(disk)
    assert [rows_in(fresh.journal, bound) for bound in fresh.records()] == [[2]]
