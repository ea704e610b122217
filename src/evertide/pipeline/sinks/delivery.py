"""Delivers one collection to one sink, transaction by transaction, from the sink's durable position.

The parts of `step`; each is durable before the next (rules of the record: `evertide.pipeline.sinks.sink_record`):

1. *Register*, once the collection has content: take a hold on its shard, then write the record with a new token.
2. *Open* the sink, and compare the last transaction of the target with the record.
3. *Move*, if the collection has a new shard (the view was changed, or was recomputed after a failure): record the new
   shard, then write the difference, new minus old, as one transaction. A target that takes numbered requests first gets
   the rest of the old shard.
4. *Deliver* the whole content as the first transaction, then the changes of each later one. Transactions without
   changes are skipped (J7). The record follows each write; the hold follows the record. Large transactions are written
   in pieces (`evertide.pipeline.sinks.sink_changes`).

The sink of a failed view waits. So does one whose view has another query now and is not computed yet: if its target has
no rows, it does not get those of the old query. After an error the sink is closed, and the next step opens it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing

import msgspec
import pyarrow as pa

from evertide.errors import Conflict, EvertideError, OutcomeUnknown, SinkFailed, Unexpected
from evertide.logs import TRANSACTION
from evertide.observer import NO_OBSERVER, DeliveryEvent, Observer
from evertide.pipeline.definition import is_redefined_view
from evertide.pipeline.sinks.sink_changes import SinkReader
from evertide.pipeline.sinks.sink_record import SinkRecord, SinkRecords, StoredSinkRecord, name_sink_hold
from evertide.pipeline.state.members import Members
from evertide.rows.changes import DIFF
from evertide.rows.slices import SLICES_MAX
from evertide.shard.shard import Shard
from evertide.sinks.contract import Changes, Prepared, Sink, SinkDeclaration
from evertide.types import SequenceNumber

logger = logging.getLogger(__name__)

_TURN_WAIT_S = 0.5


class Delivery:
    """Only one thread at a time may call `step`."""

    def __init__(  # noqa: PLR0917
        self,
        declaration: SinkDeclaration,
        prepared: Prepared,
        recorded: StoredSinkRecord | None,
        records: SinkRecords,
        members: Callable[[], Members],
        turn: threading.RLock,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """Holding `turn` prevents changes of the definition; `recorded` is None for a new sink."""
        self.declaration = declaration
        self.name = declaration.name
        self.waits_for = ""
        """Why the sink waits, if not for transactions."""
        self._prepared = prepared
        self._number = recorded.number if recorded else SequenceNumber(0)
        self._record = recorded.record if recorded and recorded.record.is_declared else None
        self._records = records
        self._members = members
        self._turn = turn
        self._observer = observer
        self._writer = records.writer
        self._sink: Sink | None = None
        self._position = self._record.position if self._record else -1
        self._held = -1
        """The last transaction that the target has."""
        self._kept_at_s = declaration.runtime.monotonic_s()
        self._reader = SinkReader(declaration.key, self._fit, records.settings, self._count_pieces)
        self._is_known = True
        """False after a write of unknown outcome: the stored record may differ from `_record`."""

    @property
    def position(self) -> int:
        """The target has everything up to this transaction; the record may be behind."""
        return self._position

    @property
    def written(self) -> int:
        return self._record.written if self._record else -1

    def step(self) -> bool:
        """Deliver some of the outstanding transactions. False if there is nothing more to deliver now."""
        TRANSACTION.set(None)
        try:
            return not self._must_wait_for_query() and self._step()
        except BaseException as error:
            self._close()
            if _is_out_of_memory(error):
                self._halve_pieces()
            raise

    def record_position(self, after_s: float = 0.0) -> None:
        """Record the position after transactions without changes, and move the hold; at most every `after_s`."""
        if not self._is_known:
            self._read_back()
        record, now_s = self._record, self.declaration.runtime.monotonic_s()
        if record is None or now_s - self._kept_at_s < after_s:
            return
        self._kept_at_s = now_s
        if record.moving_to == "" and self._position > record.position:
            record = self._write(position=self._position)
        if record.moving_to == "" and record.position >= 0:
            self._members().shard(record.shard).hold(name_sink_hold(self.name), record.position)

    def close(self) -> None:
        try:
            self.record_position()
        except EvertideError as error:
            logger.warning("could not record the position of sink %r: %s", self.name, error)
        self._close()

    def wait(self, timeout_s: float) -> None:
        """Wait until the shard changes, or for `timeout_s`."""
        shard = self._open_current_shard()
        if shard is None:
            return
        log = shard.log
        log.meta.wait(log.key, log.read().seqno, timeout_s)

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - what was written is durable, and the sink is not used again
                logger.warning("could not close sink %r: %s", self.name, type(error).__name__)

    def _open_current_shard(self) -> Shard | None:
        """The current shard of the collection; None while it has none."""
        members, collection = self._members(), self.declaration.collection
        tables, views = members.definition.tables, members.definition.views
        shard = views[collection].shard if collection in views else tables[collection].shard
        return members.shard(shard) if shard else None

    def _read_back(self) -> None:
        """Read the stored record. Only the leader writes it, so the last write either happened or did not."""
        found = self._records.read_all().get(self.name)
        if found is not None:
            self._number = found.number
            self._record = found.record if found.record.is_declared else None
        self._is_known = True

    def _step(self) -> bool:
        self.waits_for = ""
        if not self._is_known:
            self._read_back()
        record = self._record or self._register()
        if record is None:
            return False
        sink = self._sink or self._open(record)
        current = self._open_current_shard()
        if record.moving_to == "" and current is not None and current.name != record.shard:
            if self._must_complete_old_shard(record):
                self._deliver_new(self._members().shard(record.shard), sink)
                return True
            if self._position < 0:  # nothing of the old shard was written
                if self._register() is not None:
                    self._leave(record.shard)
                return self._record is not record
            record = self._begin_move(record, current)
        if record.moving_to:
            self._move(record, sink)
            return True
        if current is None:
            self.waits_for = f"{self.declaration.collection!r} has no content yet"
        if current is None or current.name != record.shard:
            return False
        return self._deliver_new(current, sink)

    def _must_wait_for_query(self) -> bool:
        """Whether the target has no rows, as far as the record says, and those of the declared query do not exist."""
        is_empty = self._position < 0 and (self._record is None or self._record.cut is msgspec.UNSET)
        if not is_empty or not is_redefined_view(self._members().definition, self.declaration.collection):
            return False
        self.waits_for = f"the query of {self.declaration.collection!r} changed, and the view is not computed yet"
        return True

    def _register(self) -> SinkRecord | None:
        if not self._turn.acquire(timeout=_TURN_WAIT_S):
            return None
        try:
            shard, collection = self._open_current_shard(), self.declaration.collection
            if shard is None or shard.upper == 0:
                self.waits_for = f"{collection!r} has no content yet"
                return None
            shard.hold(name_sink_hold(self.name), shard.upper - 1)
            token = self._record.token if self._record else f"evertide-{self.declaration.runtime.new_id()}"
            return self._store(SinkRecord(token, collection, self.declaration.connector, shard.name))
        finally:
            self._turn.release()

    def _open(self, record: SinkRecord) -> Sink:
        sink = self._prepared.open(record.token)
        try:
            held = self._check_target(record, sink)
        except BaseException:
            sink.close()
            raise
        self._sink = sink
        self._held = max(held, record.written)
        if not record.moving_to or held < record.moving_at:
            self._position = max(self._position, held)
        return sink

    def _check_target(self, record: SinkRecord, sink: Sink) -> int:
        """The last transaction of the target, or -1. `SinkFailed` if it contradicts the record or the shard."""
        last = sink.last()
        held = -1 if last is None else last
        if sink.keeps_number and held < record.written:
            why = f"the target no longer has transaction {record.written}, which was written to it"
            raise self._make_failure(f"{why}. Restore the target; or give the sink another name and another target")
        upper = self._members().shard(record.shard).upper
        if held >= max(upper, record.moving_at + 1):
            why = f"the target has transaction {held}, and the pipeline is at {upper - 1}"
            raise self._make_failure(f"{why}. If the storage was restored from a backup, give the sink another name")
        return held

    def _deliver_new(self, shard: Shard, sink: Sink) -> bool:
        upper: int = shard.upper
        if self._position + 1 >= upper:
            return False
        if self._position < 0:
            time = self._choose_first_time(upper - 1)
            with shard.snapshot(time) as found, self._reader.content(time, found) as content:
                self._deliver(sink, time, content)
            upper = time + 1
        else:
            upper = shard.log.read().state.find_read_end(self._position + 1, shard.log.settings.transaction_rows_max)
            with closing(self._reader.transactions(shard, self._position + 1, upper)) as transactions:
                for time, changes in transactions:
                    self._deliver(sink, time, changes)
        self._position = upper - 1
        if self._record is not None and self._record.position < 0:
            self._write(position=self._position)
        self.record_position(shard.log.settings.heartbeat_interval_s)
        return self._position + 1 < shard.upper

    def _choose_first_time(self, time: int) -> int:
        """The time of the first content: the recorded one, if an earlier try may have written some of it."""
        record = self._record
        return record.cut[0] if record is not None and record.cut is not msgspec.UNSET else time

    def _count_pieces(self, time: int, count: int, rows: int) -> int:
        """The number of pieces. It is recorded before the first write, so that a retry cuts in the same way. This is
        not needed for one piece, unless the target takes it in several numbered requests."""
        record = self._record
        if record is not None and record.cut is not msgspec.UNSET and record.cut[0] == time:
            return record.cut[1]
        if count > 1 or self._position < 0 or 0 < self._prepared.request_rows < rows:
            self._write(cut=(time, count))
        return count

    def _must_complete_old_shard(self, record: SinkRecord) -> bool:
        """Whether to deliver the rest of the old shard before the difference. A target that takes numbered requests may
        have some of the next transaction, which the difference neither repeats nor takes back."""
        if not self._prepared.request_rows or (self._position < 0 and record.cut is msgspec.UNSET):
            return False
        return self._position + 1 < self._members().shard(record.shard).upper

    def _halve_pieces(self) -> None:
        """Cut the current transaction into twice as many pieces, unless the target numbers its requests."""
        record = self._record
        if record is None or record.cut is msgspec.UNSET or not self._is_known or self._prepared.request_rows:
            return
        time, count = record.cut
        if count < SLICES_MAX and time > max(record.written, record.position):
            logger.warning(
                "sink %r has not enough memory for a piece of the transaction; cutting it into %d pieces",
                self.name,
                2 * count,
            )
            self._write(cut=(time, 2 * count))

    def _deliver(self, sink: Sink, time: int, changes: Changes) -> None:
        if not changes.is_empty:
            self._put(sink, time, changes)
            self._position = self._held = time
            self._write(position=time, written=time)

    def _put(self, sink: Sink, time: int, changes: Changes) -> None:
        clock = self.declaration.runtime.monotonic_s
        TRANSACTION.set(time)
        began_s = clock()
        sink.write(time, changes)
        self._observer.on_delivery(DeliveryEvent(self.name, time, changes.rows, began_s, clock() - began_s))

    def _begin_move(self, record: SinkRecord, current: Shard) -> SinkRecord:
        """Record the move. The difference needs a higher number than the target has: else wait for a transaction."""
        time = current.upper - 1
        if time <= self._held:
            self.waits_for = f"the new content of {self.declaration.collection!r} is written with the next transaction"
            return record
        current.hold(name_sink_hold(self.name), time)
        return self._write(moving_to=current.name, moving_at=time)

    def _move(self, record: SinkRecord, sink: Sink) -> None:
        members = self._members()
        old, new, time = members.shard(record.shard), members.shard(record.moving_to), record.moving_at
        if self._held < time:
            with (
                old.snapshot(self._position) as before,
                new.snapshot(time) as after,
                self._reader.content(time, after, before) as difference,
            ):
                if not difference.is_empty:
                    self._put(sink, time, difference)
                    self._held = time
        self._position = time
        self._write(shard=new.name, position=time, written=max(record.written, self._held), moving_to="", moving_at=-1)
        self._leave(old.name)

    def _leave(self, shard: str) -> None:
        """Release the old shard; finalize it if no collection and no other sink uses it."""
        members = self._members()
        old, definition = members.shard(shard), members.definition
        old.release(name_sink_hold(self.name))
        named = {one.shard for one in definition.tables.values()} | {one.shard for one in definition.views.values()}
        others = {
            each
            for name, found in self._records.read_all().items()
            if name != self.name
            for each in found.record.shards
        }
        if shard not in named | others:
            old.finalize(self._writer)

    def _fit(self, changes: pa.Table) -> pa.Table:
        """The changes with the declared columns: columns that were added later are NULL in older rows."""
        wanted = self.declaration.schema
        have = changes.schema
        for field in have:
            if field.name != DIFF and (field.name not in wanted.names or wanted.field(field.name).type != field.type):
                why = f"the column {field.name!r} of {self.declaration.collection!r} was removed or has another type"
                raise self._make_failure(f"{why}. Give the sink another name and another target")
        columns = [
            changes[field.name] if field.name in have.names else pa.nulls(changes.num_rows, field.type)
            for field in wanted
        ]
        return pa.Table.from_arrays([*columns, changes[DIFF]], schema=pa.schema([*wanted, have.field(DIFF)]))

    def _write(self, **changed: object) -> SinkRecord:
        if self._record is None:
            raise Unexpected(where="Delivery._write", why=f"sink {self.name!r} has no record")
        return self._store(msgspec.structs.replace(self._record, **changed))

    def _store(self, record: SinkRecord) -> SinkRecord:
        try:
            found = self._records.write(self.name, self._number, record)
        except (OutcomeUnknown, Conflict):
            self._is_known = False
            raise
        self._number, self._record = found.number, found.record
        return found.record

    def _make_failure(self, why: str) -> SinkFailed:
        return SinkFailed(sink=self.name, where=f"{self.declaration.where}, {self.declaration.collection!r}", why=why)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether the error or one of its causes is a `MemoryError`: connectors wrap errors of their libraries."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MemoryError):
        cause = cause.__cause__
    return cause is not None
