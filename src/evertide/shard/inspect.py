"""Describe a shard for display, `status` and tests. Read-only; it ends no lease."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from evertide.shard.hold import read_holds
from evertide.shard.lease import LeaseRecord
from evertide.shard.shard_log import ShardLog
from evertide.store.meta import unseal
from evertide.store.paths import lease_prefix
from evertide.types import SequenceNumber, Time


@dataclass(frozen=True, slots=True)
class BatchView:
    lower: int
    upper: int
    since: int
    rows: int
    retractions: int
    bytes: int
    parts: tuple[str, ...]
    """The keys of the blobs; "inline" for a part inside the state."""


@dataclass(frozen=True, slots=True)
class LeaseView:
    lease: str
    reader: str
    host: str
    pid: int
    seqno: SequenceNumber
    time: Time
    silent_s: float


@dataclass(frozen=True, slots=True)
class Inspection:
    shard: str
    path: str
    columns: dict[str, str]
    since: Time
    upper: Time
    finalized: bool
    seqno: SequenceNumber
    diffs: int
    rollup_seqno: SequenceNumber
    holds: dict[str, int]
    leases: tuple[LeaseView, ...]
    writers: tuple[str, ...]
    batches: tuple[BatchView, ...]

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def bytes(self) -> int:
        return sum(batch.bytes for batch in self.batches)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"shard {self.shard} at {self.path}" + (" (finalized)" if self.finalized else ""),
            f"  since {self.since}  upper {self.upper}  rows {self.rows:,}  bytes {self.bytes:,}",
            f"  log at {self.seqno}, {self.diffs} diffs kept, rolled up at {self.rollup_seqno}",
            f"  columns {', '.join(f'{name}: {kind}' for name, kind in self.columns.items())}",
        ]
        lines += [f"  hold {name} at {time}" for name, time in sorted(self.holds.items())]
        lines += [
            f"  lease {view.lease} of {view.reader or 'a reader'} ({view.host}, pid {view.pid}) at diff {view.seqno}, "
            f"time {view.time}, silent for {view.silent_s:.0f} s"
            for view in self.leases
        ]
        lines += [f"  {'times':>24} {'since':>10} {'rows':>14} {'retractions':>12} {'bytes':>14} parts"]
        lines += [
            f"  {f'[{b.lower}, {b.upper})':>24} {b.since:>10} {b.rows:>14,} {b.retractions:>12,} {b.bytes:>14,} "
            f"{len(b.parts)}"
            for b in self.batches
        ]
        return "\n".join(lines)


def inspect(log: ShardLog) -> Inspection:
    version = log.read()
    state = version.state
    rollup = log.read_newest_rollup()
    oldest = log.meta.scan(log.key, limit=1)
    return Inspection(
        shard=log.shard,
        path=log.path,
        columns={field.name: str(field.type) for field in log.schema()},
        since=state.since,
        upper=state.upper,
        finalized=state.finalized,
        seqno=version.seqno,
        diffs=max(0, version.seqno - oldest[0].seqno + 1) if oldest else 0,  # records have no gaps
        rollup_seqno=rollup[1].seqno if rollup else SequenceNumber(0),
        holds=read_holds(log).holds,
        leases=_read_leases(log),
        writers=tuple(state.tokens),
        batches=tuple(
            BatchView(
                b.lower, b.upper, b.since, b.rows, b.retractions, b.bytes, tuple(p.key or "inline" for p in b.parts)
            )
            for b in state.batches
        ),
    )


def _read_leases(log: ShardLog) -> tuple[LeaseView, ...]:
    now_s = log.runtime.wall_s()
    found = log.meta.heads(lease_prefix(log.shard))
    records = [unseal(record.data, LeaseRecord, log.meta.path(key)) for key, record in found.items()]
    return tuple(LeaseView(r.lease, r.reader, r.host, r.pid, r.seqno, r.time, now_s - r.beat_at_s) for r in records)
