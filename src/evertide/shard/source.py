"""`ShardSource`: a shard as a stream of changes and progress.

One lister and several fetchers, each a thread:

1. The lister takes a lease, then lists window after window as the upper advances (`evertide.shard.read.Lister`). While
   there is nothing new it sleeps in Meta's `wait`.
2. Fetchers read the parts in any order and emit each as `Delivered`, so the changes of a large time are never in memory
   all at once. At most `fetchers` parts are being read, and as many wait for the consumer.
3. `Progressed` follows the last part of a time (`evertide.shard.frontier`), in the same queue: all data below the
   frontier precedes it.
4. A damaged or missing part, or a failed listing, is reported once as `Frozen`. Its time stays incomplete, and the
   frontier never passes it (I5).
5. A lost lease is told apart from a lost file by reading Meta (I6). The source then takes a new lease, lists again from
   its frontier, and emits `Restarted`: the consumer discards what was delivered at or above that time. If that time is
   compacted, the source freezes with `TimeCompacted`.
6. Stopping has two phases. `stop` fixes the frontier, and the threads end; `join` waits for them and releases the
   lease. A stopped source never looks complete: a consumer of several sources takes the least of their frontiers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from evertide.errors import BlobMissing, EvertideError, LeaseLost, OutcomeUnknown, Unavailable, Unexpected
from evertide.shard.frontier import Frontier
from evertide.shard.lease import Lease, Leases
from evertide.shard.parts.part import Part
from evertide.shard.read import Lister, PartListing, TimeWindow, fetch
from evertide.shard.shard_log import ShardLog
from evertide.threads.watched import WatchedThread
from evertide.types import SequenceNumber, Time

_WAIT_S = 0.25
"""The longest sleep of a thread before it checks whether the source was stopped."""

_TRANSIENT = (Unavailable, OutcomeUnknown)
"""Errors that a retry may resolve: shown in `error` until then, and no reason to freeze."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Changes at `time` or later, in no particular order."""

    time: Time
    changes: pa.Table


@dataclass(frozen=True, slots=True)
class Progressed:
    """Every change below `frontier` has been delivered."""

    frontier: Time


@dataclass(frozen=True, slots=True)
class Restarted:
    """Discard what was delivered at `frontier` or later: it is delivered again."""

    frontier: Time


@dataclass(frozen=True, slots=True)
class Frozen:
    """The frontier will not pass `frontier`, because of `error`."""

    frontier: Time
    error: EvertideError


Event: TypeAlias = Delivered | Progressed | Restarted | Frozen


@dataclass(frozen=True, slots=True)
class _FetchTask:
    epoch: int
    part: Part
    listing: PartListing
    lease: Lease
    """The lease under which the part was listed. A later lease does not protect it."""

    @property
    def time(self) -> Time:
        return self.listing.window.time_of(self.part)


class ShardSource:
    """With `snapshot`, it starts with the content at `as_of`; otherwise with the changes after it."""

    def __init__(
        self,
        log: ShardLog,
        leases: Leases,
        as_of: int,
        *,
        snapshot: bool,
    ) -> None:
        self.log = log
        self.error: EvertideError | None = None
        self._leases = leases
        self._as_of = as_of
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._frontier = Frontier(Time(as_of if snapshot else as_of + 1))
        self._epoch = 0
        self._lease: Lease | None = None
        self._stopping = threading.Event()
        workers = log.settings.fetchers
        self._tasks: queue.Queue[_FetchTask] = queue.Queue(workers)
        self._events: queue.Queue[Event] = queue.Queue(workers * 2)
        self._threads = [WatchedThread("evertide-list", self._run_lister, on_death=self._on_thread_death)]
        self._threads += [
            WatchedThread(f"evertide-fetch-{number}", self._run_fetcher, on_death=self._on_thread_death)
            for number in range(workers)
        ]

    @property
    def frontier(self) -> Time:
        return self._frontier.value

    def start(self) -> ShardSource:
        for thread in self._threads:
            thread.start()
        return self

    def poll(self, timeout_s: float) -> Event | None:
        """Return the next event; None if there was none within the timeout."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def __iter__(self) -> Iterator[Event]:
        """Yield events until the source is stopped. A frozen source yields `Frozen` once and then waits."""
        while not self._stopping.is_set():
            event = self.poll(_WAIT_S)
            if event is not None:
                yield event

    def stop(self) -> None:
        self._stopping.set()  # first, because a thread that waits for space in a queue holds the lock
        with self._lock:
            self._frontier.stop()

    def join(self) -> None:
        self.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def __enter__(self) -> ShardSource:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.join()

    def _run_lister(self) -> None:
        lister: Lister | None = None
        epoch = -1
        while not self._stopping.is_set():
            try:
                if epoch != self._epoch:
                    lister = None
                    epoch = self._epoch
                if lister is None:
                    lister = self._new_lister()
                listing = lister.poll(_WAIT_S)
            except (Unavailable, OutcomeUnknown) as error:
                self._pause(error)  # a lease that was taken unnoticed expires
                continue
            except EvertideError as error:
                if self._freeze(error, epoch, self._frontier.listed_upper):
                    return
                continue  # a fetcher has restarted the source: list again
            self._clear_transient_error()
            if listing is not None:
                self._schedule_fetches(listing, epoch)
            else:
                self._advance_idle_lease(SequenceNumber(lister.seqno), epoch)

    def _pause(self, error: Unavailable | OutcomeUnknown) -> None:
        """Storage did not answer, or refused: show the error, and wait before the next attempt."""
        self.error = error
        self._stopping.wait(_WAIT_S)

    def _new_lister(self) -> Lister:
        if self._snapshot and self.frontier <= self._as_of:
            start, held = TimeWindow(0, self._as_of + 1, self._as_of), self._as_of
        else:
            start, held = TimeWindow(self.frontier, self.frontier), max(self.frontier - 1, 0)
        lease = self._leases.take(self.log, Time(held))
        with self._lock:
            self._lease = lease
        return Lister(self.log, start)

    def _schedule_fetches(self, listing: PartListing, epoch: int) -> None:
        lease = self._lease
        if lease is None:
            return
        tasks = [_FetchTask(epoch, part, listing, lease) for part in listing.parts]
        self._update_frontier(
            epoch,
            lambda: self._frontier.add_listing(
                [task.time for task in tasks], Time(listing.window.upper), listing.seqno
            ),
        )
        for task in tasks:
            self._put(self._tasks, task)

    def _advance_idle_lease(self, seqno: SequenceNumber, epoch: int) -> None:
        """Move the lease past what compaction of an idle shard replaced."""
        with self._lock:
            if epoch == self._epoch and self._lease is not None and self._frontier.outstanding == 0:
                self._lease.advance(seqno, Time(self._frontier.value - 1))

    def _run_fetcher(self) -> None:
        while not self._stopping.is_set():
            try:
                task = self._tasks.get(timeout=_WAIT_S)
            except queue.Empty:
                continue
            while task.epoch == self._epoch and not self._stopping.is_set() and not self._finish_task(task):
                pass

    def _finish_task(self, task: _FetchTask) -> bool:
        try:
            changes = self._fetch(task)
        except LeaseLost:
            self._restart(task.epoch)
        except Unavailable as error:
            self._pause(error)
            return False
        except EvertideError as error:
            self._freeze(error, task.epoch, task.time)
        else:
            self._clear_transient_error()
            self._emit(task.epoch, Delivered(task.time, changes))
            self._update_frontier(task.epoch, lambda: self._frontier.add_delivery(task.time, task.listing.seqno))
        return True

    def _fetch(self, task: _FetchTask) -> pa.Table:
        try:
            return fetch(self.log, task.part, task.listing)
        except BlobMissing:
            task.lease.check(self.frontier)
            raise

    def _update_frontier(self, epoch: int, move: Callable[[], bool]) -> None:
        """Update the frontier, and announce it if it moved. The lock keeps announcements in order."""
        with self._lock:
            if self._stopping.is_set() or epoch != self._epoch or not move():
                return
            if self._lease is not None:
                self._lease.advance(self._frontier.seqno, Time(self._frontier.value - 1))
            self._put(self._events, Progressed(self._frontier.value))

    def _emit(self, epoch: int, event: Event) -> None:
        with self._lock:
            if epoch == self._epoch:
                self._put(self._events, event)

    def _restart(self, epoch: int) -> None:
        with self._lock:
            if epoch != self._epoch:
                return
            self._epoch += 1
            self._lease = None
            self.error = None
            self._frontier = Frontier(self._frontier.value)
            self._put(self._events, Restarted(self._frontier.value))

    def _freeze(self, error: EvertideError, epoch: int, time: Time) -> bool:
        """Emit `Frozen` once. Return False if a restart has already discarded the listing."""
        with self._lock:
            if epoch != self._epoch:
                return False
            if self.error is None or isinstance(self.error, _TRANSIENT):
                self.error = error
                self._put(self._events, Frozen(time, error))
            return True

    def _on_thread_death(self, error: Unexpected) -> None:
        """Freeze the source: an unexpected error ended one of its threads."""
        self._freeze(error, self._epoch, self._frontier.value)

    def _clear_transient_error(self) -> None:
        if isinstance(self.error, _TRANSIENT):
            self.error = None

    def _put(self, target: queue.Queue[_FetchTask] | queue.Queue[Event], item: _FetchTask | Event) -> None:
        """Put the item, unless the source is stopped while the queue is full."""
        while not self._stopping.is_set():
            try:
                target.put(item, timeout=_WAIT_S)  # type: ignore[arg-type]
            except queue.Full:
                continue
            return
