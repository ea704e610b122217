"""`Maintenance`: the thread that compacts all shards and collects their garbage, beside the appends.

1. A shard is compacted when its log has new diffs. A new since is a diff, too, so idle shards are compacted.
2. Garbage of all shards is collected every `garbage_interval_s`, because the end of a lease leaves no diff.
3. A shard whose maintenance fails is in `failing` until it succeeds. The wait before each retry doubles. Other shards
   and the appends continue (I12).
4. A generation that moved during a round is not a failure: a view joined or left. The transactions adopt it, and the
   next round continues.
"""

from __future__ import annotations

from evertide.errors import EvertideError, Fenced, GenerationMoved
from evertide.shard.garbage import Pinned, pin_nothing
from evertide.shard.shard import Shard, Shards
from evertide.store.paths import shard_key
from evertide.store.writers import Writer
from evertide.threads.failures import Failures
from evertide.threads.ticker import Ticker

_ALL = "maintenance of all shards"


def _task_name(shard: str) -> str:
    return f"maintenance of shard {shard}"


class Maintenance(Ticker):
    def __init__(self, shards: Shards, writer: Writer, pinned: Pinned = pin_nothing) -> None:
        super().__init__("evertide-maintenance", shards.settings.maintenance_interval_s)
        self.failing = Failures(shards.runtime, shards.settings.maintenance_interval_s)
        self._shards = shards
        self._writer = writer
        self._pinned = pinned
        self._open: dict[str, Shard] = {}
        self._seen: dict[str, int] = {}
        self._garbage_at_s = shards.runtime.monotonic_s()

    def run_once(self, *, collect_garbage: bool = True) -> None:
        """Compact the shards that changed, and collect the garbage of all if `collect_garbage`. A failed shard waits
        for its retry."""
        prefix = shard_key("")
        for key, head in self._shards.meta.heads(prefix).items():
            name = key.removeprefix(prefix)
            if self._stopping.is_set():
                return
            work = _task_name(name)
            if self.failing.is_waiting(work):
                continue
            has_failed = self.failing.is_failing(work)
            if self._seen.get(name) != head.seqno or has_failed or collect_garbage:
                self._maintain(name, collect_garbage=collect_garbage or has_failed)
            self._seen[name] = head.seqno

    def _maintain(self, name: str, *, collect_garbage: bool) -> None:
        try:
            if name not in self._open:
                self._open[name] = self._shards.open(name)
            shard = self._open[name]
            shard.compact(self._writer, self._stopping.is_set)
            if collect_garbage:
                shard.collect_garbage(self._writer, self._pinned)
            self.failing.remove(_task_name(name))
        except Fenced:
            raise
        except EvertideError as error:
            self.failing.add(_task_name(name), error)

    def tick(self) -> bool:
        settings, runtime = self._shards.settings, self._shards.runtime
        due = runtime.monotonic_s() - self._garbage_at_s >= settings.garbage_interval_s
        if self.failing.is_waiting(_ALL):
            return True
        try:
            self.run_once(collect_garbage=due)
            self.failing.remove(_ALL)
        except GenerationMoved:  # rule 4
            return True
        except EvertideError as error:
            self.failing.add(_ALL, error)
            return not isinstance(error, Fenced)
        if due:
            self._garbage_at_s = runtime.monotonic_s()
        return True
