"""Real processes on SQLite and files: killed, stopped and continued at any moment, and compared with the model.

All of them append the same changes (`tests.shard.model.scripted`), so the content is known whichever survives. Before a
process is killed, it has written and synced what was acknowledged to it: none of that may be missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil
import pytest

from evertide.errors import Fenced, TimeCompacted
from evertide.runtime import SystemRuntime
from evertide.shard.compaction import choose
from evertide.shard.shard import Shard, Shards
from evertide.store import LocalBlob
from evertide.store.paths import lease_prefix, shard_key
from evertide.store.writers import Writer, read_registrations
from tests.kit.runtime import RandomStream
from tests.shard import worker
from tests.shard.model import SCHEMA, Model, to_rows
from tests.shard.worker import PAIR, SETTINGS, SOLO, open_shards, script

NAMES = (SOLO, *PAIR)
RUNTIME = SystemRuntime()
SECONDS = 5.0
"""The duration of one crowd; `make soak` runs many, and for longer."""
WORKERS = 3

FORKING = get_context("forkserver")
FORKING.set_forkserver_preload(["tests.shard.worker"])


@dataclass
class Worker:
    process: ForkServerProcess
    told: Path
    stopped: bool = False

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def wait_until_stopped(self) -> None:
        until_s = RUNTIME.monotonic_s() + 30.0
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            assert self.process.exitcode is None, f"the process ended: {self.end()}"
            assert RUNTIME.monotonic_s() < until_s, "the process did not stop"
            RUNTIME.sleep_s(0.01)

    def end(self) -> tuple[int | None, str]:
        """Its exit code and its log."""
        self.process.join(30.0)
        log = self.told.with_suffix(".log")
        return self.process.exitcode, log.read_text() if log.exists() else ""

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.end()


@dataclass
class Crowd:
    """Processes on one storage, forked from a server that has everything imported and nothing open."""

    root: Path
    seed: int
    workers: list[Worker] = field(default_factory=list)
    told: list[Path] = field(default_factory=list)
    ends: Counter[int] = field(default_factory=Counter)

    def start(self, stop_within: tuple[str, str] | None = None) -> Worker:
        self.seed += 1
        told = self.root.parent / f"told-{self.seed}"
        self.told.append(told)
        process = FORKING.Process(target=worker.run, args=(self.root, told, self.seed, stop_within), daemon=True)
        process.start()
        self.workers.append(Worker(process, told))
        return self.workers[-1]

    def reap(self) -> None:
        """A process that ended by itself was fenced; no other end is allowed."""
        for one in [one for one in self.workers if one.process.exitcode is not None]:
            self.workers.remove(one)
            code, said = one.end()
            assert code == Fenced.exit_code, f"exit code {code}:\n{said}"
            self.ends[code] += 1

    def kill_all(self) -> None:
        for one in self.workers:
            one.kill()
        self.workers = []

    def acknowledged(self, name: str) -> int:
        lines = [line.split() for told in self.told if told.exists() for line in told.read_text().splitlines()]
        return max((int(line[1]) for line in lines if len(line) == 2 and line[0] == name), default=0)


@contextlib.contextmanager
def crowd_at(directory: Path, seed: int) -> Iterator[Crowd]:
    root = directory / "storage"
    LocalBlob(root).make_root()
    crowd = Crowd(root, seed)
    try:
        yield crowd
    finally:
        crowd.kill_all()


@contextlib.contextmanager
def visitor(root: Path) -> Iterator[tuple[Shards, Writer]]:
    """This process, on the same storage."""
    shards = open_shards(root)
    try:
        yield shards, Writer.register(shards.meta, runtime=RUNTIME, settings=SETTINGS)
    finally:
        shards.meta.close()


def disturb(crowd: Crowd, rng: RandomStream) -> None:
    """Kill a process, stop one, or continue a stopped one, perhaps after longer than writers live."""
    stopped = [one for one in crowd.workers if one.stopped]
    running = [one for one in crowd.workers if not one.stopped]
    if stopped and rng.below(6) == 0:
        stopped[0].signal(signal.SIGCONT)
        stopped[0].stopped = False
    elif running and not stopped and rng.below(4) == 0:
        chosen = running[rng.below(len(running))]
        chosen.signal(signal.SIGSTOP)
        chosen.stopped = True
    elif running:
        victim = running[rng.below(len(running))]
        crowd.workers.remove(victim)
        victim.kill()
        crowd.ends[-signal.SIGKILL] += 1


def check_shard(shard: Shard, acknowledged: int) -> None:
    since, upper = shard.since, shard.upper
    assert upper >= acknowledged, f"{shard.name}: acknowledged up to {acknowledged}, but the upper is {upper}"
    model = Model(script(0, upper), since, upper)
    for as_of in range(since, upper):
        with contextlib.suppress(TimeCompacted), shard.snapshot(as_of, timeout_s=1.0) as snapshot:
            assert to_rows(snapshot.to_arrow()) == model.content(as_of), f"{shard.name} as of {as_of}"


def check_nothing_is_left(shards: Shards, writer: Writer) -> None:
    """After all processes ended, garbage collection leaves only what states and newest roll-ups name."""
    named: set[str] = set()
    for name in shards.names():
        shard = shards.open(name)
        shard.compact(writer)
        shard.advance_since(shard.upper - 1, writer)
        shard.compact(writer)
        shard.collect_garbage(writer)
        shard.collect_garbage(writer)
        state = shard.log.read().state
        assert not choose(state, SETTINGS)
        assert len(shards.meta.scan(shard_key(name))) <= 2 * SETTINGS.rollup_every_diffs + 2
        assert not shards.meta.heads(lease_prefix(name))
        rollup = shard.log.read_newest_rollup()
        named |= {part.key for part in state.parts if part.key} | ({rollup[1].key} if rollup else set())
        check_shard(shard, state.upper)
    found = {entry.key for entry in shards.blob.list("")} | set(shards.blob.list_unfinished(""))
    assert found == named
    assert set(read_registrations(shards.meta)) == {writer.id}


def run_processes(directory: Path, seconds: float, seed: int) -> str:
    """Run one crowd for `seconds`. Returns a line about what happened."""
    rng = RandomStream(seed)
    with crowd_at(directory, seed * 100_000) as crowd:
        with visitor(crowd.root) as (shards, writer):
            for name in NAMES:
                shards.create(name, SCHEMA, writer)
            writer.unregister()
        until_s = RUNTIME.monotonic_s() + seconds
        while RUNTIME.monotonic_s() < until_s:
            while len(crowd.workers) < WORKERS:
                crowd.start()
            RUNTIME.sleep_s(0.15 + rng.random() * 0.3)
            crowd.reap()
            disturb(crowd, rng)
        crowd.reap()
        crowd.kill_all()
        RUNTIME.sleep_s(SETTINGS.writer_ttl_s + 0.1)
        with visitor(crowd.root) as (shards, writer):
            for name in NAMES:
                check_shard(shards.open(name), crowd.acknowledged(name))
            uppers = {name: shards.open(name).upper for name in NAMES}
            assert uppers[PAIR[0]] == uppers[PAIR[1]], "the shards did not change in one commit (I4)"
            assert all(uppers.values()), f"no process made progress: {uppers}"
            check_nothing_is_left(shards, writer)
        return f"seed {seed}: uppers {uppers}, ends {dict(crowd.ends)}"


def test_processes_killed_and_stopped_at_any_moment(tmp_path: Path) -> None:
    print(run_processes(tmp_path, SECONDS, seed=os.getpid()))


@pytest.mark.parametrize(
    ("action", "call"),
    [("append", "put parts"), ("compact", "put parts"), ("roll_up", "put rollups"), ("collect", "delete")],
)
def test_c9_stopped_writer_is_fenced(tmp_path: Path, action: str, call: str) -> None:
    """A process is stopped between its blobs and the commit that names them, for longer than writers live.

    Other processes end its writer and delete its blobs. Once continued it must find itself fenced, and name none of
    them.
    """
    with crowd_at(tmp_path, seed=0) as crowd:
        stopping = crowd.start((action, call))
        stopping.wait_until_stopped()
        with visitor(crowd.root) as (shards, writer):
            stopped = set(read_registrations(shards.meta)) - {writer.id}
            RUNTIME.sleep_s(SETTINGS.writer_ttl_s + 0.2)
            shard = shards.open(SOLO)
            ended = shard.collect_garbage(writer).writers_ended
            assert set(ended) == stopped
            upper = shard.upper
            assert upper >= crowd.acknowledged(SOLO)
            shard.compact(writer)
            shard.collect_garbage(writer)
            before = shard.log.read().state
            stopping.signal(signal.SIGCONT)
            code, said = stopping.end()
            assert code == Fenced.exit_code, f"exit code {code}:\n{said}"
            assert shard.log.read().state == before
            for name in NAMES:
                check_shard(shards.open(name), crowd.acknowledged(name))
            check_nothing_is_left(shards, writer)
