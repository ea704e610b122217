"""The background thread that follows collections for shapes, and the limits on shapes.

After every commit, by any process:
1. Read what was committed, and wake the clients that wait for it.
2. Learn which shapes other processes have ended, and whether collections were replaced.

Periodically (`enforce_limits`, also in processes that serve no shapes):
3. End shapes whose log has grown too long, or whose collection has another shard.
4. If there are too many shapes, end the least recently used. Only a process that serves shapes does this: it creates
   them, and others do not know when shapes were used.
5. Move the holds on the shards to the oldest remaining shape, so that the storage can compact earlier times.
"""

from __future__ import annotations

import logging
import threading
from typing import Self

from evertide.errors import EvertideError
from evertide.problem import Problem
from evertide.shapes.log.record import HOLD, ShapeRecord, estimate_log_rows
from evertide.shapes.log.registry import Shapes
from evertide.store.paths import COMMITTED
from evertide.threads.failures import Failures
from evertide.threads.outage_log import OutageLog
from evertide.threads.ticker import Ticker
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_LIMITS = "enforcing the limits of shapes"
_WAIT_S = 0.5
"""The longest wait for a commit, before the thread checks whether it was stopped."""


def enforce_limits(shapes: Shapes, *, is_serving: bool = True) -> None:
    """Enforce the limits on all shapes of a storage, whichever process created them."""
    shapes.refresh_collections()
    records = shapes.records.all()
    shards = {name: shapes.members.shard(name) for name in sorted({record.shard for record in records})}
    named = shapes.shards()
    states = {name: shard.log.read().state for name, shard in shards.items()}
    rows_max = shapes.options.log_rows_max
    left: list[ShapeRecord] = []
    for record in records:
        state = states[record.shard]
        if record.shard not in named or state.finalized:
            shapes.end(record.handle, f"collection {record.collection!r} has a new shard or was removed")
        elif estimate_log_rows(record, state) > max(rows_max, record.rows):
            shapes.end(record.handle, f"the log has more than {rows_max} changes (log_rows_max)")
        else:
            left.append(record)
    if is_serving:
        left = _end_surplus(shapes, left)
    oldest: dict[str, int] = {}
    for record in left:
        oldest[record.shard] = min(record.time, oldest.get(record.shard, record.time))
    for name in {*shards, *named}:
        shard = shapes.members.shard(name)
        if shard.holds.get(HOLD) != oldest.get(name):  # otherwise move_hold would read all shapes again each time
            shapes.records.move_hold(shard)


def _end_surplus(shapes: Shapes, records: list[ShapeRecord]) -> list[ShapeRecord]:
    """End the shapes beyond the limits, the least recently used first. Returns the others."""
    options, size = shapes.options, 0
    left: list[ShapeRecord] = []
    used_s = {shape.handle: shape.used_s for shape in shapes.live()}
    latest = sorted(records, key=lambda one: (used_s.get(one.handle, -1.0), one.made_at_s), reverse=True)
    for number, record in enumerate(latest, 1):
        size += len(record.definition)
        if number > options.shapes_max:
            shapes.end(record.handle, f"the storage has more than {options.shapes_max} shapes (shapes_max)")
        elif size > options.definitions_bytes:
            shapes.end(record.handle, f"all definitions exceed {options.definitions_bytes} bytes (definitions_bytes)")
        else:
            left.append(record)
    return left


def _try_enforce(shapes: Shapes, failures: Failures, *, is_serving: bool) -> None:
    """Enforce the limits; note a failure, because the storage then keeps more and more history for shapes."""
    if failures.is_waiting(_LIMITS):
        return
    try:
        enforce_limits(shapes, is_serving=is_serving)
        failures.remove(_LIMITS)
    except EvertideError as error:
        failures.add(_LIMITS, error)


class LimitEnforcer(Ticker):
    """Enforces limits in a process that serves no shapes: shapes of other processes hold history in the storage."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__("evertide-shape-limits", shapes.settings.heartbeat_interval_s)
        self._shapes = shapes
        self._failures = Failures(shapes.runtime, self._interval_s)

    def list_failures(self) -> list[Problem]:
        return self._failures.problems()

    def tick(self) -> bool:
        _try_enforce(self._shapes, self._failures, is_serving=False)
        return True


class FeedFollower:
    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._stopping = threading.Event()
        self._thread = WatchedThread("evertide-shapes", self._run)
        self._enforced_s = shapes.runtime.monotonic_s()
        self._failure = OutageLog(logger, "could not follow collections for shapes, will retry", shapes.runtime)
        self._failures = Failures(shapes.runtime, shapes.settings.heartbeat_interval_s)

    def start(self) -> Self:
        self._shapes.begin_following()
        self._thread.start()
        return self

    def list_thread_problems(self) -> list[Problem]:
        return self._thread.list_thread_problems()

    def list_failures(self) -> list[Problem]:
        return self._failures.problems()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._shapes.stop()

    def tick(self) -> None:
        shapes = self._shapes
        shapes.follow()
        shapes.refresh_collections()
        shapes.forget_ended()
        now_s = shapes.runtime.monotonic_s()
        if now_s - self._enforced_s >= shapes.settings.heartbeat_interval_s:
            self._enforced_s = now_s
            shapes.release_idle()
            _try_enforce(shapes, self._failures, is_serving=True)

    def _run(self) -> None:
        shapes, wait_s = self._shapes, self._shapes.settings.retry_wait_s
        while not self._stopping.is_set():
            with self._thread.report_and_retry():
                try:
                    record = shapes.meta.head(COMMITTED)
                    self.tick()
                    self._failure.end()
                    shapes.meta.wait(COMMITTED, record.seqno if record is not None else 0, _WAIT_S)
                    wait_s = shapes.settings.retry_wait_s
                    continue
                except EvertideError as error:
                    self._failure.note(error)
            shapes.wake_stale()
            self._stopping.wait(wait_s)
            wait_s = min(2 * wait_s, shapes.settings.retry_wait_max_s)
