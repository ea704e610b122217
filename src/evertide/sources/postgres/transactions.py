"""Assemble messages into committed transactions, in order, staged in fragments.

1. Small transactions arrive one after the other, and are collected into a *batch*, so that a fragment has many.
2. A large transaction is staged in fragments while it arrives. If it is *streamed*, it is still open upstream, others
   arrive in between, and it may be rolled back, as a whole or by subtransactions; until its commit it is not offered.
   Fragments with rows of subtransactions that were rolled back are rewritten without them.
3. A transaction that was already bound is a repeat, and dropped (J10).
4. A relation that has changed ends the stream with an error, before any of its rows is read. In a streamed transaction
   this happens at the commit, as the change may also be rolled back.

`drop` discards all incomplete transactions: the server sends them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import SourceFailed
from evertide.journal.records import Staged
from evertide.sources.contract import StagingStore
from evertide.sources.postgres.batches import HEAD, WORTHWHILE, NewRows, extract_new_rows
from evertide.sources.postgres.catalog import UpstreamTable
from evertide.sources.postgres.messages import (
    Begin,
    Commit,
    Message,
    RelationMessage,
    RowChange,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Value,
    decode,
    decode_new_row,
)
from evertide.sources.postgres.ready_queue import XIDS_MAX
from evertide.sources.postgres.rows import XID, Buffer, RelationLayout, match_layout
from evertide.sources.postgres.server import SourceAddress

_CHECK_EVERY_ROWS = 64
"""Check the size of the buffers once per this many rows."""

Columns = dict[str, dict[str, str]]
"""By table and column: the type, as in the stream, of the rows that were read."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Limits of memory: per fragment, and for all streamed transactions together."""

    rows: int = 50_000
    bytes: int = 8 * 1024 * 1024
    open_bytes: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompleteTransactions:
    """One or more complete transactions."""

    end_lsn: int
    commit_s: float
    """The commit time of the first."""
    fragments: tuple[Staged, ...]
    rows: int
    bytes: int
    columns: Columns
    xids: tuple[int, ...]
    """Their upstream xids."""
    truncated: Mapping[str, int]
    """The upstream names of truncated tables, each with the last xid that truncated it."""


@dataclass(frozen=True, slots=True)
class _StagedRows:
    fragment: Staged
    xids: frozenset[int]


class _PendingRows:
    """Rows of several tables, in memory or already staged."""

    def __init__(self, staging: StagingStore, limits: BufferLimits) -> None:
        self._staging = staging
        self._limits = limits
        self._buffers: dict[str, Buffer] = {}
        self._staged: list[_StagedRows] = []
        self._mark: tuple[int, dict[str, int]] = (0, {})

    def mark(self) -> None:
        """Mark the end of the complete transactions."""
        self._mark = (len(self._staged), {name: len(buffer) for name, buffer in self._buffers.items()})

    def cut(self) -> bool:
        """Go back to the mark. False if rows after the mark were already staged."""
        staged_count, lengths = self._mark
        if len(self._staged) != staged_count:
            return False
        self._buffers = {name: buffer for name, buffer in self._buffers.items() if lengths.get(name)}
        for name, buffer in self._buffers.items():
            buffer.cut(lengths[name])
        return True

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return sum(buffer.bytes for buffer in self._buffers.values())

    @property
    def is_empty(self) -> bool:
        return not self._staged and not self._buffers

    @property
    def has_staged_rows(self) -> bool:
        return bool(self._staged)

    @property
    def waiting(self) -> int:
        """Rows in memory."""
        return sum(map(len, self._buffers.values()))

    @property
    def is_full(self) -> bool:
        return self.waiting >= self._limits.rows or self.bytes >= self._limits.bytes

    def buffer(self, upstream: UpstreamTable) -> Buffer:
        name = upstream.declaration.name
        if name not in self._buffers:
            self._buffers[name] = Buffer(upstream)
        return self._buffers[name]

    def spill(self, without: Collection[int] = ()) -> None:
        """Stage the rows that are in memory."""
        buffers, self._buffers = self._buffers, {}
        for name, buffer in buffers.items():
            rows = buffer.table(without)
            if rows.num_rows:
                self._staged.append(_StagedRows(self._staging.stage(name, rows), buffer.xids.difference(without)))

    def finish(self, aborted: Collection[int] = ()) -> tuple[Staged, ...]:
        self.spill(aborted)
        all_staged, self._staged = self._staged, []
        return tuple(kept for staged in all_staged for kept in self._remove_aborted(staged, aborted))

    def _remove_aborted(self, staged: _StagedRows, aborted: Collection[int]) -> list[Staged]:
        if staged.xids.isdisjoint(aborted):
            return [staged.fragment]
        rows = self._staging.load(staged.fragment)
        gone = pc.is_in(rows.column(XID), pa.array(sorted(aborted), pa.int64()))
        left = rows.filter(pc.invert(gone))
        made = [self._staging.stage(staged.fragment.table, left)] if left.num_rows else []
        self._staging.drop([staged.fragment])
        return made

    def drop(self) -> None:
        self._buffers = {}
        all_staged, self._staged = self._staged, []
        self._staging.drop([staged.fragment for staged in all_staged])


@dataclass
class _Streamed:
    """A transaction that is still open upstream."""

    rows: _PendingRows
    layouts: dict[int, RelationLayout | None] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    truncated: set[tuple[int, str]] = field(default_factory=set)
    """Truncated tables, each with the subtransaction that truncated it."""
    error: SourceFailed | None = None

    def fail(self, error: SourceFailed) -> None:
        self.error = error


class TransactionAssembler:
    def __init__(
        self,
        address: SourceAddress,
        upstreams: Collection[UpstreamTable],
        staging: StagingStore,
        publish: Callable[[CompleteTransactions], None],
        *,
        after: int,
        columns: Mapping[str, Mapping[str, str]],
        limits: BufferLimits,
    ) -> None:
        """`after` is the end of the last transaction that was read; `columns` are the columns at that time."""
        self._address = address
        self._upstreams = {(upstream.name.schema, upstream.name.table): upstream for upstream in upstreams}
        self._staging = staging
        self._publish = publish
        self._limits = limits
        self._after = after
        self._columns: Columns = {name: dict(known) for name, known in columns.items()}
        self._layouts: dict[int, RelationLayout | None] = {}
        self._batch = _PendingRows(staging, limits)
        self._batch_s = 0.0
        self._batch_xids: list[int] = []
        self._truncated: dict[str, int] = {}
        """Tables that transactions of the batch truncated."""
        self._begun: Begin | None = None
        self.commit_lsn = 0
        """The commit position of the last transaction that arrived; an error belongs to this transaction."""
        self._unchecked_rows = 0
        self._streamed: dict[int, _Streamed] = {}
        self._stream: _Streamed | None = None

    @property
    def is_between(self) -> bool:
        """Whether no transaction is arriving, and no streamed block is open."""
        return self._begun is None and self._stream is None

    @property
    def has_batch(self) -> bool:
        return not self._batch.is_empty

    @property
    def after(self) -> int:
        """The end of the last complete transaction."""
        return self._after

    def take_all(self, messages: Sequence[bytes]) -> None:
        """Process outer data messages in order, new rows in batches."""
        if len(messages) < WORTHWHILE:
            for message in messages:
                self.take(message[HEAD:])
            return
        found, left = extract_new_rows(messages, is_streamed=self._stream is not None)
        at = 0
        for place in [*left, len(messages)]:
            for rows in found if at < place else ():
                self._new_rows(rows, rows.before[at], rows.before[place])
            if place < len(messages):
                self.take(messages[place][HEAD:])
            at = place + 1

    def take(self, content: bytes) -> None:
        is_streamed = self._stream is not None
        row = decode_new_row(content, is_streamed=is_streamed)
        if row is not None:
            self._new_row(*row, len(content))
        else:
            self._message(decode(content, is_streamed=is_streamed))

    def _message(self, message: Message | None) -> None:
        match message:
            case RowChange():
                self._change(message)
            case Begin():
                self._begun, self.commit_lsn = message, message.commit_lsn
                self._batch.mark()
            case Commit():
                self._commit(message)
            case RelationMessage():
                self._relation(message)
            case Truncate():
                self._truncate(message)
            case StreamStart():
                new = _Streamed(_PendingRows(self._staging, self._limits))
                self._stream = self._streamed.setdefault(message.xid, new)
            case StreamStop():
                self._stream = None
                self._make_room()
            case StreamCommit():
                self._stream_commit(message)
            case StreamAbort():
                self._stream_abort(message)

    def flush(self) -> None:
        """Publish the batch. Call only between two transactions."""
        if self.has_batch:
            truncated, self._truncated = self._truncated, {}
            self._publish_rows(self._batch.finish(), self._batch_s, tuple(self._batch_xids), truncated)
            self._batch = _PendingRows(self._staging, self._limits)
            self._batch_xids = []

    def flush_whole(self) -> None:
        """Publish the transactions that arrived before one that cannot be read."""
        if self._begun is None or self._batch.cut():
            self.flush()

    def drop(self) -> None:
        for pending in (self._batch, *(streamed.rows for streamed in self._streamed.values())):
            pending.drop()
        self._streamed, self._stream, self._begun = {}, None, None

    def _publish_rows(
        self, fragments: tuple[Staged, ...], commit_s: float, xids: tuple[int, ...], truncated: Mapping[str, int]
    ) -> None:
        rows, size = sum(each.rows for each in fragments), sum(each.bytes for each in fragments)
        columns = {name: dict(known) for name, known in self._columns.items()}
        self._publish(CompleteTransactions(self._after, commit_s, fragments, rows, size, columns, xids, truncated))

    def _rows(self) -> _PendingRows | None:
        """Where new rows are added; None for a transaction that was already bound."""
        if self._stream is not None:
            return self._stream.rows
        is_repeat = self._begun is None or self._begun.commit_lsn < self._after
        return None if is_repeat else self._batch

    def _layout(self, oid: int) -> RelationLayout | None:
        """None if the table is not declared, or has changed, which is reported at the commit."""
        if self._stream is not None and oid in self._stream.layouts:
            return self._stream.layouts[oid]
        return self._layouts.get(oid)

    def _new_row(self, xid: int, relation: int, values: list[Value], size: int) -> None:
        rows, layout = self._rows(), self._layout(relation)
        if rows is not None and layout is not None:
            rows.buffer(layout.upstream).add_row(layout, values, size, xid)
            self._spill_if_full(rows)

    def _new_rows(self, new: NewRows, first: int, last: int) -> None:
        if first == last:
            return
        rows, layout = self._rows(), self._layout(new.relation)
        while rows is not None and layout is not None and first < last:
            fitting = new.count_fitting(first, self._limits.bytes - rows.bytes)
            count = min(last - first, fitting, max(1, self._limits.rows - rows.waiting))
            rows.buffer(layout.upstream).add_rows(layout, new, first, first + count)
            first += count
            if rows.is_full:
                rows.spill(() if self._stream is None else self._stream.aborted)

    def _spill_if_full(self, rows: _PendingRows) -> None:
        self._unchecked_rows += 1
        if self._unchecked_rows >= _CHECK_EVERY_ROWS or self._limits.rows < _CHECK_EVERY_ROWS:
            self._unchecked_rows = 0
            if rows.is_full:
                rows.spill(() if self._stream is None else self._stream.aborted)

    def _change(self, change: RowChange) -> None:
        rows, layout = self._rows(), self._layout(change.relation)
        if rows is None or layout is None:
            return
        if not rows.buffer(layout.upstream).add_change(layout, change):
            why = f"a change of {layout.upstream.name} does not identify its row; its replica identity was reduced"
            raise self._address.failure(f"{why}; run ALTER TABLE {layout.upstream.name} REPLICA IDENTITY FULL")
        self._spill_if_full(rows)

    def _truncate(self, message: Truncate) -> None:
        rows = self._rows()
        for oid in message.relations:
            layout = self._layout(oid)
            if rows is not None and layout is not None:
                rows.buffer(layout.upstream).add_truncate(message.xid)
                name = str(layout.upstream.name)
                if self._begun is not None:
                    self._truncated[name] = self._begun.xid
                elif self._stream is not None:
                    self._stream.truncated.add((message.xid, name))

    def _commit(self, commit: Commit) -> None:
        begun, self._begun = self._begun, None
        if begun is None or commit.commit_lsn < self._after:
            return
        self._batch_s = self._batch_s if self.has_batch and self._batch_s else commit.commit_s
        self._after = commit.end_lsn
        if self._batch.is_empty:
            self._batch_s = 0.0
            return
        self._batch_xids.append(begun.xid)
        if self._batch.is_full or self._batch.has_staged_rows or len(self._batch_xids) >= XIDS_MAX:
            self.flush()

    def _stream_commit(self, commit: StreamCommit) -> None:
        self.commit_lsn = commit.commit_lsn
        streamed = self._streamed.pop(commit.xid, None)
        if streamed is None:
            return
        if commit.commit_lsn < self._after:
            streamed.rows.drop()
            return
        if streamed.error is not None:
            raise streamed.error
        self.flush()
        self._layouts |= streamed.layouts
        self._columns |= streamed.columns
        fragments = streamed.rows.finish(streamed.aborted)
        self._after = commit.end_lsn
        if fragments:
            truncated = {name: xid for xid, name in sorted(streamed.truncated) if xid not in streamed.aborted}
            self._publish_rows(fragments, commit.commit_s, (commit.xid,), truncated)

    def _stream_abort(self, abort: StreamAbort) -> None:
        streamed = self._streamed.get(abort.xid)
        if streamed is None:
            return
        if abort.subxid == abort.xid:
            streamed.rows.drop()
            del self._streamed[abort.xid]
        else:
            streamed.aborted.add(abort.subxid)

    def _make_room(self) -> None:
        """Stage the largest streamed transactions while all together exceed `open_bytes`."""
        several = sorted(self._streamed.values(), key=lambda one: -one.rows.bytes)
        total = sum(one.rows.bytes for one in several)
        for one in several:
            if total <= self._limits.open_bytes:
                return
            total -= one.rows.bytes
            one.rows.spill(one.aborted)

    def _relation(self, relation: RelationMessage) -> None:
        upstream = self._upstreams.get(relation.name)
        layouts = self._layouts if self._stream is None else self._stream.layouts
        if upstream is None:
            layouts[relation.oid] = None
            return
        name = str(upstream.name)
        try:
            layout, known = match_layout(self._address, relation, upstream, self._columns.get(name))
        except SourceFailed as error:
            if self._stream is None:
                raise
            self._stream.fail(error)
            layouts[relation.oid] = None
            return
        layouts[relation.oid] = layout
        (self._columns if self._stream is None else self._stream.columns)[name] = known
