"""A power cut at every operation of everything that shards do, on a disk that loses data that was not synced.

After each cut the machine boots, and a new process registers and ends the dead one. It finds exactly what was
acknowledged, or that and the one step in progress. Then it appends, compacts and collects, after which no blob is left
over and none is missing.

Every operation is cut with no un-synced data surviving, and a sample with each other kind of survivors;
`EVERTIDE_POWER=full` tries every operation with every kind (one to two minutes).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from evertide.errors import TimeCompacted
from evertide.shard.append import store_parts
from evertide.shard.lease import Lease
from evertide.shard.shard import Shard, Shards
from evertide.store import LocalBlob
from evertide.store.paths import lease_prefix
from evertide.store.writers import read_registrations
from evertide.types import Time
from tests.kit.cuts import SURVIVORS, CutsFailed, every_cut
from tests.kit.disk import SimulatedDisk, Survivors
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, Host, changes, content_of

TTL_S = 60.0
FULL = os.environ.get("EVERTIDE_POWER") == "full"
BLOBS = replace(SETTINGS, rollup_every_diffs=5)
INLINE = replace(BLOBS, inline_bytes_max=16 * 1024)


@dataclass
class Model:
    """The expected content of one shard: a delta per append, and the holds and since that limit its times."""

    deltas: list[tuple[int, Mapping[int, int]]] = field(default_factory=list)
    upper: int = 0
    since: int = 0
    holds: dict[str, int] = field(default_factory=dict)
    finalized: bool = False

    def append(self, rows: Mapping[int, int]) -> None:
        self.deltas.append((self.upper, rows))
        self.upper += 1

    def content(self, as_of: int) -> dict[int, int]:
        total: Counter[int] = Counter()
        for time, rows in self.deltas:
            if time <= as_of:
                total.update(rows)
        return {row: diff for row, diff in total.items() if diff}


Models = dict[str, Model]


class Process:
    """One process. Each append chooses whether it is inline or a blob."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.host = Host(LocalBlob(disk.root, disk.files), disk.meta, disk.runtime, BLOBS)
        self.inline = Shards(self.host.blob, self.host.meta, runtime=disk.runtime, settings=INLINE)
        self.leases: list[Lease] = []

    def shard(self, name: str, *, inline: bool = False) -> Shard:
        return (self.inline if inline else self.host.shards).open(name)

    def append(self, rows: Mapping[str, Mapping[int, int]], *, inline: bool = False) -> None:
        opened = {name: self.shard(name, inline=inline) for name in rows}
        uppers = {name: shard.upper for name, shard in opened.items()}
        self.host.shards.append_together(
            [(opened[name], changes(rows[name], uppers[name]), uppers[name], uppers[name] + 1) for name in rows],
            self.host.writer,
        )

    def maintain(self, name: str) -> None:
        self.shard(name).compact(self.host.writer)
        self.shard(name).collect_garbage(self.host.writer)


@dataclass(frozen=True)
class Step:
    """An operation of a process, and its effect on the models."""

    name: str
    act: Callable[[Process], object]
    means: Callable[[Models], object] = lambda _models: None


def creation(name: str) -> Step:
    return Step(f"create {name}", lambda p: p.host.create(name), lambda m: m.setdefault(name, Model()))


def append(rows: Mapping[str, Mapping[int, int]], *, inline: bool = False) -> Step:
    def means(found: Models) -> None:
        for name, added in rows.items():
            found[name].append(added)

    return Step(f"append {rows}", lambda p: p.append(rows, inline=inline), means)


def hold(name: str, time: int) -> Step:
    return Step(f"hold {time}", lambda p: p.shard("a").hold(name, time), lambda m: m["a"].holds.update({name: time}))


def since(asked: int, reached: int) -> Step:
    def act(process: Process) -> None:
        assert process.shard("a").advance_since(asked, process.host.writer) == reached

    return Step(f"since {reached}", act, lambda m: setattr(m["a"], "since", reached))


def finalize(name: str) -> Step:
    return Step(
        f"finalize {name}",
        lambda p: p.shard(name).finalize(p.host.writer),
        lambda m: setattr(m[name], "finalized", True),
    )


def _take(process: Process) -> None:
    shard = process.shard("a")
    process.leases.append(process.host.shards.leases.take(shard.log, Time(shard.upper - 1)))


STEPS = [
    creation("a"),
    creation("b"),
    append({"a": {1: 1, 2: 1}}),
    append({"a": {2: -1, 3: 1}}, inline=True),
    append({"a": {4: 1}, "b": {40: 1}}),
    hold("sink", 1),
    append({"a": {1: -1, 5: 1}, "b": {50: 1}}, inline=True),
    since(9, 1),
    Step("take", _take),
    Step("beat leases", lambda p: p.host.shards.leases.beat()),
    Step("compact", lambda p: p.shard("a").compact(p.host.writer)),
    Step("collect under a lease", lambda p: p.shard("a").collect_garbage(p.host.writer)),
    Step("give back", lambda p: p.leases.pop().release()),
    hold("sink", 3),
    since(9, 3),
    append({"a": {6: 1}}),
    Step("maintain a", lambda p: p.maintain("a")),
    finalize("b"),
    Step("collect b", lambda p: p.shard("b").collect_garbage(p.host.writer)),
    append({"a": {3: -1, 7: 1}}),
]


def models(steps: int) -> Models:
    found: Models = {}
    for step in STEPS[:steps]:
        step.means(found)
    return found


def build() -> SimulatedDisk:
    """A writer that died and left a part that no state names, and one that it had not finished."""
    disk = SimulatedDisk(ManualRuntime(seed=1))
    dead = Process(disk).host
    rows = changes({99: 1}, 0)
    for attempt in ("", "again"):
        stored = {"shard": "a", "blob": dead.blob, "writer": dead.writer.id, "seq": 1, "attempt": attempt}
        store_parts(rows, runtime=disk.runtime, settings=BLOBS, **stored)  # type: ignore[arg-type]
    [part, *_] = sorted(dead.blobs())
    disk.files.rename(disk.root / part, disk.root / f"{part}.tmp")
    disk.files.sync_directory((disk.root / part).parent)
    disk.runtime.advance_s(TTL_S + 1)
    return disk


def workload(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
    process = Process(disk)
    for number, step in enumerate(STEPS, 1):
        step.act(process)
        acknowledge(number)


def read_properties(process: Process) -> Models:
    """The recorded properties of the shards, without their content."""
    found: Models = {}
    for name in process.host.shards.names():
        state = process.shard(name).log.read().state
        holds = process.shard(name).holds
        found[name] = Model([], state.upper, state.since, holds, state.finalized)
    return found


def properties_of(found: Models) -> Models:
    return {name: replace(model, deltas=[]) for name, model in found.items()}


def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    disk.runtime.advance_s(TTL_S + 1)
    process = Process(disk)
    done = acknowledged[-1] if acknowledged else 0
    found = read_properties(process)
    possible = [models(steps) for steps in (done, done + 1)]
    expected = next((model for model in possible if properties_of(model) == found), None)
    assert expected is not None, f"after step {done} of {[step.name for step in STEPS]}: {found}"
    check_content(process, expected)
    continue_work(process, expected)
    check_content(process, expected)
    check_tidy(process)


def check_content(process: Process, expected: Models) -> None:
    for name, model in expected.items():
        if not model.finalized:
            shard = process.shard(name)
            for time in range(model.since, model.upper):
                assert content_of(shard, time) == model.content(time), (name, time)
            if model.since:
                with pytest.raises(TimeCompacted):
                    content_of(shard, model.since - 1)


def continue_work(process: Process, expected: Models) -> None:
    """A new process makes the missing steps, appends, compacts and collects."""
    process.host.create("a")
    expected.setdefault("a", Model())
    for name, model in expected.items():
        if not model.finalized:
            process.append({name: {1000: 1}})
            model.append({1000: 1})
        process.maintain(name)
        process.maintain(name)


def check_tidy(process: Process) -> None:
    """Every blob is named, every named blob exists, no dead writer is registered, and no lease is left."""
    host = process.host
    named: set[str] = set()
    for name in host.shards.names():
        log = process.shard(name).log
        rollup = log.read_newest_rollup()
        named |= {part.key for part in log.read().state.parts if part.key} | ({rollup[1].key} if rollup else set())
        assert host.meta.heads(lease_prefix(name)) == {}
    unfinished = set(host.blob.list_unfinished(""))
    assert host.blobs() | unfinished == named, "a blob leaked or was lost"
    assert list(read_registrations(host.meta)) == [host.writer.id]


SAMPLES: list[tuple[Survivors, int]] = [("none", 1), ("all", 11), ("names", 7), (1, 5), (2, 9)]
"""Kinds of survivors, and how often: at every operation, at each eleventh, ..."""


@pytest.mark.parametrize(("survivors", "every"), [(kind, 1) for kind in SURVIVORS] if FULL else SAMPLES, ids=str)
def test_power_cut_at_every_operation(survivors: Survivors, every: int) -> None:
    assert every_cut(build, workload, check, survivors=[survivors], every=every) > 25


def test_the_check_detects_a_part_named_before_its_directory_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 6 of `LocalBlob.put` removed."""

    class Hasty(LocalBlob):
        def put(self, key: str, data: bytes) -> None:
            path = self._root / key
            self._make_directories(path.parent)
            self._files.rename(self._write_temporary(path, data), path)

    monkeypatch.setattr("tests.shard.test_power.LocalBlob", Hasty)
    with pytest.raises(CutsFailed, match="BlobMissing"):
        every_cut(build, workload, check, survivors=["none"], every=3)


def test_the_check_detects_a_commit_acknowledged_before_it_is_durable() -> None:
    def hasty(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
        process = Process(disk)
        for number, step in enumerate(STEPS[:3], 1):
            acknowledge(number)
            step.act(process)

    with pytest.raises(CutsFailed, match="after step"):
        every_cut(build, hasty, check, survivors=["none"])


def test_the_check_detects_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.shard.garbage._find_orphans", lambda _proof: ())
    with pytest.raises(CutsFailed, match="a blob leaked or was lost"):
        every_cut(build, workload, check, survivors=["none"], every=40)
