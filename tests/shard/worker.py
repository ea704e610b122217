"""One process of `tests/shard/test_processes.py`: appends, compacts, collects and reads, until it is killed.

It writes each acknowledged append, synced, to a file of its own, one line `<shard> <upper>` each. Its exit code is 4 if
it found itself fenced, and 1 after any other error. Its log is `<that file>.log`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evertide.errors import Fenced, LeaseLost, OutcomeUnknown, TimeCompacted, Unavailable, UpperMismatch
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.shard import Shard, Shards
from evertide.store import Blob, LocalBlob, SqliteMeta
from evertide.store.writers import Writer
from tests.kit.runtime import RandomStream
from tests.shard.kit import PassingBlob
from tests.shard.model import SCHEMA, Change, Model, scripted, to_rows, to_table

SOLO = "solo"
"""Every worker appends the missing times to these."""

PAIR = ("pair-0", "pair-1")
"""Appended to in one commit (I4)."""

SETTINGS = Settings(
    inline_bytes_max=1,
    part_rows_max=5,
    rollup_every_diffs=4,
    compaction_fan_in=3,
    compaction_rows_max=8,
    lease_ttl_s=1.0,
    writer_ttl_s=1.0,
    heartbeat_interval_s=0.1,
    poll_interval_s=0.01,
    retry_wait_s=0.01,
    retry_wait_max_s=0.05,
    retry_limit_s=3.0,
)


def script(lower: int, upper: int) -> list[Change]:
    return [change for time in range(lower, upper) for change in scripted(time)]


def open_shards(root: Path, wrap: Callable[[Blob], Blob] = lambda blob: blob) -> Shards:
    runtime = SystemRuntime()
    blob = LocalBlob(root)
    return Shards(wrap(blob), SqliteMeta(root / "meta.db", runtime, SETTINGS), runtime=runtime, settings=SETTINGS)


class StoppingBlob(PassingBlob):
    """Stops the whole process right before the first call of a kind, once requested. The call continues when the
    process does.
    """

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self.stop_at = ""

    def _stop(self, call: str) -> None:
        if call == self.stop_at:
            self.stop_at = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._stop(f"put {key.partition('/')[0]}")

    def delete(self, key: str) -> bool:
        self._stop("delete")
        return super().delete(key)


class Worker:
    def __init__(self, root: Path, told: Path, seed: int) -> None:
        self.blob = StoppingBlob(LocalBlob(root))
        self.shards = open_shards(root, lambda _: self.blob)
        self.rng = RandomStream(seed)
        self.told = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.writer = Writer.register(self.shards.meta, runtime=self.shards.runtime, settings=SETTINGS)
        self.heart = Heartbeat(SETTINGS, self.shards.leases, self.writer).start()
        self.solo, *self.pair = (self.shards.create(name, SCHEMA, self.writer) for name in (SOLO, *PAIR))

    def tell(self, shard: str, upper: int) -> None:
        os.write(self.told, f"{shard} {upper}\n".encode())
        os.fsync(self.told)

    def any_shard(self) -> Shard:
        return (self.solo, *self.pair)[self.rng.below(3)]

    def append(self) -> None:
        lower = self.solo.upper
        upper = lower + 1 + self.rng.below(2)
        try:
            self.solo.compare_and_append(to_table(script(lower, upper)), lower, upper, self.writer)
        except UpperMismatch:
            return
        self.tell(SOLO, upper)

    def append_pair(self) -> None:
        lower = self.pair[0].upper
        changes = to_table(script(lower, lower + 1))
        try:
            self.shards.append_together([(shard, changes, lower, lower + 1) for shard in self.pair], self.writer)
        except UpperMismatch:
            return
        for name in PAIR:
            self.tell(name, lower + 1)

    def compact(self) -> None:
        self.any_shard().compact(self.writer)

    def roll_up(self) -> None:
        self.any_shard().log.roll_up(self.writer)

    def advance_since(self) -> None:
        shard = self.any_shard()
        shard.advance_since(shard.upper - 5, self.writer)

    def collect_garbage(self) -> None:
        self.any_shard().collect_garbage(self.writer)

    def read(self) -> None:
        shard = self.any_shard()
        since, upper = shard.since, shard.upper
        if upper == 0:
            return
        as_of = since + self.rng.below(upper - since)
        try:
            with shard.snapshot(as_of, timeout_s=1.0) as snapshot:
                found = to_rows(snapshot.to_arrow())
        except (LeaseLost, TimeCompacted):
            return
        expected = Model(script(0, as_of + 1)).content(as_of)
        assert found == expected, f"{shard.name} as of {as_of}: {found} instead of {expected}"

    def step(self) -> None:
        actions = [self.append] * 4 + [self.append_pair] * 4 + [self.compact, self.compact, self.roll_up]
        actions += [self.advance_since, self.collect_garbage, self.collect_garbage, self.read, self.read]
        try:
            actions[self.rng.below(len(actions))]()
        except (Unavailable, OutcomeUnknown):
            return  # another process has locked the database, perhaps a stopped one

    def stop_within(self, action: str, call: str) -> None:
        """Stop in the middle of an action, once, then continue to work."""
        for _ in range(7):
            self.append()
        if action == "collect":
            self.solo.advance_since(self.solo.upper - 1, self.writer)
            self.solo.compact(self.writer)
        self.blob.stop_at = call
        if action == "roll_up":
            self.append()
        done: dict[str, Callable[[], Any]] = {
            "append": self.append,
            "compact": lambda: self.solo.compact(self.writer),
            "roll_up": lambda: self.solo.log.roll_up(self.writer),
            "collect": lambda: self.solo.collect_garbage(self.writer),
        }
        done[action]()
        self.blob.stop_at = ""


def run(root: Path, told: Path, seed: int, stop_within: tuple[str, str] | None = None) -> None:
    """The whole life of the process."""
    log = os.open(told.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        worker = Worker(root, told, seed)
        if stop_within:
            worker.stop_within(*stop_within)
        while True:
            worker.step()
    except Fenced as error:
        print(error, flush=True)
        os._exit(error.exit_code)
    except BaseException:  # noqa: BLE001 - said in the log, and by the exit code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
