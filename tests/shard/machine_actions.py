"""The actions of the state machine's actors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pyarrow as pa
import pytest

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    Conflict,
    EvertideError,
    Fenced,
    LeaseLost,
    OutcomeUnknown,
    TimeCompacted,
    Unavailable,
    Unexpected,
    UpperMismatch,
)
from evertide.rows import changes as changes_module
from evertide.shard import compaction
from evertide.shard.append import Append, append_together, store_parts
from evertide.shard.compaction import compact
from evertide.shard.frontier import Frontier
from evertide.shard.lease import LeaseRecord
from evertide.shard.parts.part import Part
from evertide.shard.read import Lister, TimeWindow, fetch
from evertide.shard.shard import Shard
from evertide.store.meta import unseal
from evertide.store.paths import lease_prefix, writer_key
from evertide.types import Time
from tests.shard.machine_actors import (
    NOT_HAPPENED,
    SHARDS,
    TTL_S,
    Actor,
    Attempt,
    Died,
    Listener,
    Opened,
    Stored,
)
from tests.shard.machine_core import MachineCore
from tests.shard.model import Change, Row, sum_diffs, to_changes, to_rows, to_table


class MachineActions(MachineCore):
    """The actions of actors. `x` and `y` select the details of each."""

    def do_pass_time(self, actor: Actor, x: int, y: int) -> None:
        for one in self.actors:
            everything: list[Actor | Opened] = [one, *one.opened] if one else []
            for exposed in everything:
                exposed.exposed |= x == 7  # the clock may go forward for a moment, and then back
        self.runtime.advance_s((1.0, 5.0, 5.0, 20.0, 20.0, 30.0, 30.0, TTL_S + 1)[x])
        self.runtime.jump_wall_s(-100.0 if x == y else 0.0)

    def _rows(self, name: str, lower: int, upper: int, x: int, y: int) -> list[Change]:
        """A few rows added and removed, from so small a range that they meet again."""
        here = sorted(self.models[name].content(lower - 1))
        made: list[Change] = [
            ((number % 4, f"{x}"), lower + number % (upper - lower), 1 + x % 2) for number in range(y)
        ]
        gone: list[Change] = [(row, upper - 1, -1) for row in here[x : x + y]]
        return made + gone

    def _append(
        self, actor: Actor, changes: dict[str, list[Change]], call: Callable[[], object]
    ) -> EvertideError | None:
        attempt = Attempt(actor.writer.id, changes, actor.writer._tokens + 1)
        self.attempts.append(attempt)
        uppers = {name: {self.models[name].upper} for name in changes}
        _, error = self._outcome(actor, call, Conflict)
        attempt.last = actor.writer._tokens
        self._sync()
        for name in changes:
            uppers[name].add(self.models[name].upper)
        if error is None:
            assert set(attempt.found) == set(changes) or not any(changes.values()), (
                f"acknowledged, but not in the log: {attempt}"
            )
        if isinstance(error, NOT_HAPPENED):
            self._refuse(attempt.writer, attempt.first, attempt.last)
        if isinstance(error, UpperMismatch):
            assert any(len(seen) > 1 or error.expected not in seen for seen in uppers.values()), error
        elif isinstance(error, Conflict):
            assert any(self.models[name].finalized for name in changes), error
        return error

    def do_append(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        lower = max(0, self.models[name].upper + (0 if y < 6 else 13 - 2 * y))
        upper = lower + (1, 1, 3)[x % 3]
        changes = self._rows(name, lower, upper, x, y)
        shard, table = actor.handles[name], to_table(changes)
        self._append(actor, {name: changes}, lambda: shard.compare_and_append(table, lower, upper, actor.writer))

    def do_append_together(self, actor: Actor, x: int, y: int) -> None:
        appends, changes = [], {}
        for name in SHARDS:
            lower = self.models[name].upper
            changes[name] = self._rows(name, lower, lower + 1, x, y)
            appends.append((actor.handles[name], to_table(changes[name]), lower, lower + 1))
        self._append(actor, changes, lambda: actor.shards.append_together(appends, actor.writer))

    def do_store(self, actor: Actor, x: int, y: int) -> None:
        """The first half of an append. Another actor may append, compact or garbage-collect before the second half."""
        if actor.stored is not None:
            return
        name = SHARDS[x % 2]
        lower = self.models[name].upper
        changes = self._rows(name, lower, lower + 1, x, y)
        claim = ExitStack()
        seq = claim.enter_context(actor.writer.claim())
        parts, error = self._outcome(actor, lambda: self._store(actor, name, changes, seq))
        if parts is not None:
            actor.stored = Stored(name, lower, changes, parts, claim)
        elif isinstance(error, Unavailable):
            claim.close()

    def _store(self, actor: Actor, name: str, changes: list[Change], seq: int) -> tuple[Part, ...]:
        return store_parts(
            to_table(changes),
            shard=name,
            blob=actor.shards.blob,
            writer=actor.writer.id,
            seq=seq,
            runtime=self.runtime,
            settings=self.settings,
        )

    def do_link(self, actor: Actor, x: int, y: int) -> None:
        """The second half of an append."""
        stored, actor.stored = actor.stored, None
        if stored is None:
            return
        log, lower = actor.handles[stored.shard].log, stored.lower
        append = Append(log, stored.parts, lower, lower + 1)
        error = self._append(actor, {stored.shard: stored.changes}, lambda: append_together([append], actor.writer))
        if not isinstance(error, OutcomeUnknown):
            stored.claim.close()

    def do_compact(self, actor: Actor, x: int, y: int) -> None:
        shard = actor.handles[SHARDS[x % 2]]
        if y % 2:
            self._committing(actor, lambda: compact(shard.log, actor.writer))
        else:
            self._outcome(actor, lambda: shard.compact(actor.writer))

    def do_compact_badly(self, actor: Actor, x: int, y: int) -> None:
        """A compaction that loses a change must refuse its own result, by its digest."""

        def losing(table: pa.Table, where: str = "changes") -> pa.Table:
            summed_up = consolidate(table, where)
            if self.is_crossing:  # another actor compacts meanwhile
                return summed_up
            lost.append(summed_up.num_rows)
            return summed_up.slice(1)

        shard = actor.handles[SHARDS[x % 2]]
        consolidate, lost = changes_module.consolidate, list[int]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "consolidate", losing)
            done, error = self._committing(actor, lambda: compact(shard.log, actor.writer), Unexpected)
        assert not done or not any(lost), "a compaction lost a change and was committed"
        assert not isinstance(error, Unexpected) or any(lost), error

    def do_roll_up(self, actor: Actor, x: int, y: int) -> None:
        self._outcome(actor, lambda: actor.handles[SHARDS[x % 2]].log.roll_up(actor.writer))

    def do_advance_since(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        wanted = self.models[name].since + y
        leased = self._leased_times(name)
        reached, error = self._outcome(actor, lambda: actor.handles[name].advance_since(wanted, actor.writer), Conflict)
        self._sync()
        if reached is not None:
            assert self.models[name].since >= reached
            kept = [time for lease, time in leased.items() if self.meta.head(lease) is not None]
            assert all(reached <= time for time in kept), f"since {reached} passed the leases at {kept}"
        assert not isinstance(error, Conflict) or self.models[name].finalized, error

    def _leased_times(self, name: str) -> dict[str, int]:
        """The times that leases keep readable, by lease."""
        found = self.meta.heads(lease_prefix(name))
        records = {key: unseal(record.data, LeaseRecord, key) for key, record in found.items()}
        since = self.models[name].since
        return {key: record.time for key, record in records.items() if record.time >= since}

    def do_hold(self, actor: Actor, x: int, y: int) -> None:
        name, hold = SHARDS[x % 2], f"hold {y % 2}"
        time = max(0, self.models[name].since + y - 1)
        error = self._change_hold(actor, name, hold, time, lambda: actor.handles[name].hold(hold, time))
        assert not isinstance(error, TimeCompacted) or time < self.models[name].since, error

    def do_release(self, actor: Actor, x: int, y: int) -> None:
        name, hold = SHARDS[x % 2], f"hold {y % 2}"
        error = self._change_hold(actor, name, hold, None, lambda: actor.handles[name].release(hold))
        assert not isinstance(error, TimeCompacted), error

    def do_collect(self, actor: Actor, x: int, y: int) -> None:
        fenced = self.meta.head(writer_key(actor.writer.id)) is None
        before = actor.line.deletes
        _, error = self._outcome(actor, lambda: actor.handles[SHARDS[x % 2]].collect_garbage(actor.writer))
        if fenced:
            assert isinstance(error, Fenced if actor.line.injected == 0 else EvertideError)
            assert actor.line.deletes == before, "a fenced writer deleted blobs"

    def do_beat(self, actor: Actor, x: int, y: int) -> None:
        actor.heart.beat()
        error = actor.heart.error
        assert not isinstance(error, Fenced) or self._is_fenced(actor.writer), f"the writer is not fenced: {error}"
        if error is None:
            actor.safe_until_s = self.runtime.wall_s() + TTL_S
            actor.exposed = self._is_fenced(actor.writer)  # a peer may have ended the lease despite its heartbeat
        if error is None or isinstance(error, Fenced):
            for opened in actor.opened:
                opened.safe_until_s = self.runtime.wall_s() + TTL_S
                opened.exposed = not self._stands(opened.lease)

    def do_open_snapshot(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        model = self.models[name]
        if model.upper == 0:
            return
        as_of = max(0, model.since - 1) if y == 7 else model.since + y % (model.upper - model.since)
        safe_until_s = self.runtime.wall_s() + TTL_S
        snapshot, error = self._outcome(actor, lambda: actor.handles[name].snapshot(as_of, timeout_s=1.0), Conflict)
        if snapshot is not None:
            actor.opened.append(Opened(name, snapshot, snapshot._lease, safe_until_s))
        self._sync()
        if isinstance(error, TimeCompacted):
            assert as_of < model.since
        elif isinstance(error, Conflict):
            assert model.finalized

    def do_read_snapshot(self, actor: Actor, x: int, y: int) -> None:
        if not actor.opened:
            return
        opened = actor.opened[x % len(actor.opened)]
        table, error = self._outcome(actor, opened.snapshot.to_arrow, LeaseLost)
        if isinstance(error, LeaseLost):
            assert not self._stands(opened.lease), error
            actor.opened.remove(opened)
        elif table is not None:
            assert to_rows(table) == self.models[opened.shard].content(opened.snapshot.as_of)
        if table is not None and y % 2:
            actor.opened.remove(opened)
            self._outcome(actor, opened.snapshot.close)

    def do_listen(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        as_of = self.models[name].since - 2 + y
        is_snapshot = x % 3 == 0 and as_of >= 0
        start = as_of if is_snapshot else max(0, as_of + 1)
        self._listen(actor, name, start, is_snapshot=is_snapshot, at=len(actor.listeners))

    def _listen(self, actor: Actor, name: str, start: int, *, is_snapshot: bool, at: int) -> None:
        """Begin as `ShardSource` does: take the lease first, then list."""
        log = actor.handles[name].log
        lease, _ = self._outcome(
            actor, lambda: actor.shards.leases.take(log, Time(start if is_snapshot else max(start - 1, 0)))
        )
        if lease is not None:
            window = TimeWindow(0, start + 1, start) if is_snapshot else TimeWindow(start, start)
            listener = Listener(name, lease, Lister(log, window), Frontier(Time(start)), start, is_snapshot)
            actor.listeners[at : at + 1] = [listener]

    def do_hear(self, actor: Actor, x: int, y: int) -> None:
        """One listing, or the fetch of one part, in any order; or all that there is."""
        if not actor.listeners:
            return
        at = x % len(actor.listeners)
        listener = actor.listeners[at]
        if y % 3 == 0 or not listener.tasks:
            self._list(actor, listener)
        for _ in range(len(listener.tasks) if y > 4 else 0 if y % 3 == 0 else 1):
            if listener.tasks and listener in actor.listeners:
                self._fetch(actor, at, listener, y)
        frontier, model = listener.frontier.value, self.models[listener.shard]
        below = [change for change in listener.received if change[1] < frontier]
        if listener.start > 0 or listener.is_snapshot:
            assert sum_diffs(((row, time), diff) for row, time, diff in below) == self._expected_changes(listener)
        elif frontier > model.since:  # a reader from the start receives times below since as since
            assert sum_diffs((row, diff) for row, _, diff in below) == model.content(frontier - 1)

    def _list(self, actor: Actor, listener: Listener) -> None:
        listed, error = self._outcome(actor, lambda: listener.lister.poll(0.0), Conflict)
        self._sync()
        model = self.models[listener.shard]
        if listed is not None:
            listener.tasks += [(part, listed) for part in listed.parts]
            times = [listed.window.time_of(part) for part in listed.parts]
            if listener.frontier.add_listing(times, Time(listed.window.upper), listed.seqno):
                listener.lease.advance(listener.frontier.seqno, Time(listener.frontier.value - 1))
        elif isinstance(error, TimeCompacted):
            lower = listener.start if listener.is_snapshot else listener.start - 1
            assert min(lower, listener.frontier.value - 1) < model.since, error
            actor.listeners.remove(listener)
        elif isinstance(error, Conflict):
            assert model.finalized, error
            actor.listeners.remove(listener)

    def _fetch(self, actor: Actor, at: int, listener: Listener, y: int) -> None:
        part, listed = listener.tasks[y % len(listener.tasks)]
        log = actor.handles[listener.shard].log
        table, error = self._outcome(actor, lambda: fetch(log, part, listed), BlobMissing)
        if error is None:
            listener.tasks.remove((part, listed))
            listener.received += to_changes(table)
            if listener.frontier.add_delivery(Time(listed.window.time_of(part)), listed.seqno):
                listener.lease.advance(listener.frontier.seqno, Time(listener.frontier.value - 1))
        elif isinstance(error, BlobMissing):
            assert not self._stands(listener.lease), f"a part under a lease does not exist (I6): {error}"
            with pytest.raises((LeaseLost, Unavailable)):
                listener.lease.check(listener.frontier.value)
            start = listener.frontier.value
            is_snapshot = listener.is_snapshot and start <= listener.start
            self._listen(actor, listener.shard, start, is_snapshot=is_snapshot, at=at)

    def _expected_changes(self, listener: Listener) -> dict[tuple[Row, int], int]:
        model, frontier = self.models[listener.shard], listener.frontier.value
        if not listener.is_snapshot:
            return dict(model.between(listener.start, frontier))
        if frontier <= listener.start:
            return {}
        content = {(row, listener.start): count for row, count in model.content(listener.start).items()}
        return content | dict(model.between(listener.start + 1, frontier))

    def do_leave(self, actor: Actor, x: int, y: int) -> None:
        """A reader ends regularly."""
        if actor.listeners and x % 2:
            listener = actor.listeners.pop(y % len(actor.listeners))
            self._outcome(actor, listener.lease.release)
        elif actor.opened:
            self._outcome(actor, actor.opened.pop(y % len(actor.opened)).snapshot.close)

    def do_store_and_die(self, actor: Actor, x: int, y: int) -> None:
        """Leave blobs that no state names."""
        name = SHARDS[x % 2]
        upper = self.models[name].upper
        changes = self._rows(name, upper, upper + 1, x, y)
        with actor.writer.claim() as seq:
            self._outcome(actor, lambda: self._store(actor, name, changes, seq))
            raise Died

    def do_take_over(self, actor: Actor, x: int, y: int) -> None:
        """All other actors were silent for too long: end their writers and leases, and collect their garbage."""
        self.do_pass_time(actor, 7, 0)
        log = actor.handles[SHARDS[x % 2]].log
        self._outcome(actor, actor.writer.beat)
        self._outcome(actor, lambda: log.roll_up(actor.writer))
        self.do_collect(actor, x, y)

    def do_generation(self, actor: Actor, x: int, y: int) -> None:
        if x == 7:
            self._outcome(actor, lambda: actor.writer.change_generation(SHARDS))
        else:
            self._outcome(actor, actor.writer.adopt_generation)

    def do_finalize(self, actor: Actor, x: int, y: int) -> None:
        if x == y == 7:
            self._committing(actor, lambda: actor.handles[SHARDS[1]].finalize(actor.writer))

    def do_damage(self, actor: Actor, x: int, y: int) -> None:
        """A flipped bit is detected, and its blob named, before any row is used. Then the blob is repaired."""
        name = SHARDS[x % 2]
        keys = sorted({part.key for part in self._fresh(name).read().state.parts if part.key})
        if not keys or self.models[name].upper == 0:
            return
        key = keys[y % len(keys)]
        good = self.blob._blobs[key]
        at = len(good) * (1 + x) // 9
        self.blob._blobs[key] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        try:
            as_of = self.models[name].upper - 1
            _, error = self._outcome(
                actor, lambda: self._read(actor.handles[name], as_of), BlobDamaged, TimeCompacted, BlobMissing
            )
            assert error is not None or key not in self.blob._blobs, "a damaged part was read as content"
            self._outcome(actor, lambda: compact(actor.handles[name].log, actor.writer), BlobDamaged)
        finally:
            if key in self.blob._blobs:
                self.blob._blobs[key] = good

    @staticmethod
    def _read(shard: Shard, as_of: int) -> pa.Table:
        with shard.snapshot(as_of, timeout_s=1.0) as snapshot:
            return snapshot.to_arrow()
