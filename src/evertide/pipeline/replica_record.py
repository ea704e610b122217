"""What each process that runs a pipeline says of itself: its role, and how far it is.

Where it lies: Meta key `replica/<writer>`, version 1; only the newest record counts, and only as long as that writer is
registered. It is a courtesy, as health is: nothing rests on it. It is written when something changed, at most once per
`lead_interval_s`, and removed in the end; what one that was killed left is removed by whoever leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass

import msgspec

from evertide.errors import EvertideError
from evertide.pipeline.health import tell
from evertide.pipeline.ownership import is_gone
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.ticker import Ticker
from evertide.store.meta import Guard, Meta, Write
from evertide.store.paths import replica_key, writer_key
from evertide.store.retry import commit_settled, reading
from evertide.store.sealed import unseal
from evertide.store.writers import registered

__all__ = ["ReplicaRecord", "ReplicaStatus", "ReplicaTelling", "replica_statuses"]

logger = logging.getLogger(__name__)


class ReplicaRecord(msgspec.Struct, frozen=True):
    writer: str
    role: str
    """`leads`, `follows` or `read-only`."""
    state: str
    time: int
    """The last transaction that it has taken."""
    told_at_s: float
    change: str
    """A unique id: tells a commit whose outcome was unknown from another's."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    writer: str
    host: str
    pid: int
    role: str
    state: str
    time: int
    behind: int
    """Transactions that are committed, and that it has not taken."""
    since_s: float
    told_at_s: float


class ReplicaTelling(Ticker):
    def __init__(
        self, told: Callable[[], tuple[str, str, int]], meta: Meta, writer: str, runtime: Runtime, settings: Settings
    ) -> None:
        """`told` gives role, state and time."""
        super().__init__("evertide-replica", settings.lead_interval_s)
        self._told = told
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._last = ("", "", -1)

    def tick(self) -> bool:
        now = self._told()
        if now != self._last:
            self._last = now
            record = ReplicaRecord(self._writer, *now, self._runtime.wall_s(), self._runtime.new_id())
            registered_still = (Guard(writer_key(self._writer), 1),)
            tell(self._meta, replica_key(self._writer), record, self._runtime, self._settings, guards=registered_still)
            if now[0] == "leads":
                self._remove(lambda writer, alive: writer not in alive)
        return True

    def stop(self) -> None:
        super().stop()
        self._remove(lambda writer, _: writer == self._writer)

    def _remove(self, is_over: Callable[[str, Container[str]], bool]) -> None:
        """Records of which nobody needs to know."""
        prefix = replica_key("")
        try:
            heads = reading(lambda: self._meta.heads(prefix), self._runtime, self._settings)
            alive = reading(lambda: registered(self._meta), self._runtime, self._settings)
            for key, head in heads.items():
                if is_over(key.removeprefix(prefix), alive):
                    commit_settled(self._meta, [Write(key, head.seqno, None)], (), self._runtime, self._settings)
        except EvertideError as error:
            logger.warning("what replicas that are gone said of themselves stays: %s", error)


def replica_statuses(meta: Meta, committed: int, runtime: Runtime, settings: Settings) -> tuple[ReplicaStatus, ...]:
    """All that run now, the one that leads first. `committed` is the first time that is not."""
    alive = reading(lambda: registered(meta), runtime, settings)
    heads = reading(lambda: meta.heads(replica_key("")), runtime, settings)
    found = []
    for key, head in heads.items():
        record = unseal(head.data, ReplicaRecord, meta.path(key))
        one = alive.get(record.writer)
        if one is None or is_gone(meta, one, runtime, settings):
            continue
        behind = max(committed - 1 - record.time, 0)
        found.append(
            ReplicaStatus(
                record.writer,
                one.host,
                one.pid,
                record.role,
                record.state,
                record.time,
                behind,
                one.registered_at_s,
                record.told_at_s,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.role != "leads", one.since_s, one.writer)))
