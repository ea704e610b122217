"""Frozen settings: values only. Components (clock, stores) are passed in beside them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from evertide.errors import InvalidInput

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user may tune. None of these changes what a collection holds, only when and how it is written."""

    inline_bytes_max: int = 64 * 1024
    """A batch up to this size lives inside the shard's state and costs no blob."""

    part_rows_max: int = 1_000_000
    """Rows of one part; a larger batch is several parts."""

    row_group_rows: int = 65_536
    """Rows of one Parquet row group inside a part."""

    rollup_every_diffs: int = 128
    """A shard's state is rolled up into one blob after this many diffs."""

    compaction_fan_in: int = 8
    """Neighbouring batches of like size that are merged into one."""

    compaction_rows_max: int = 1_000_000
    """Rows that compaction holds in memory at once; a larger merge goes slice by slice."""

    lease_ttl_s: float = 60.0
    """A reader silent for this long may lose its lease."""

    writer_ttl_s: float = 20.0
    """A writer silent for this long may be unregistered, and is fenced then: so long it takes to notice that a replica
    on another machine is gone."""

    beat_interval_s: float = 5.0
    """How often leases and writers say that they live."""

    maintenance_interval_s: float = 1.0
    """How often shards that changed are looked at for compaction."""

    collection_interval_s: float = 30.0
    """How often every shard is looked at for what can be deleted."""

    poll_interval_s: float = 0.05
    """How often a waiting reader looks for appends of other processes."""

    fetchers: int = 4
    """Parts that one shard source fetches at a time."""

    retry_wait_s: float = 0.05
    """First wait after storage did not answer; doubles up to `retry_wait_max_s`."""

    retry_wait_max_s: float = 5.0

    retry_limit_s: float = 30.0
    """How long storage may stay away before the error reaches the caller."""

    postgres_silence_s: float = 30.0
    """How long PostgreSQL as Meta may stay silent in a call, beside the `retry_limit_s` that it may wait for a lock,
    before the connection is given up. Limits of the network are libpq's, in the URL: `connect_timeout` (10),
    `tcp_user_timeout` (30000 ms), `keepalives_idle` (10), `keepalives_interval` (5), `keepalives_count` (3)."""

    transaction_rows_max: int = 100_000
    """Rows that one transaction takes from its sources; what the sources bring as one piece stays one."""

    transaction_bytes_max: int = 64 * 1024 * 1024

    replay_rows_max: int = 50_000
    """Changes of transactions that are replayed as one; a larger transaction is replayed by itself."""

    portion_rows_max: int = 1_000_000
    """Rows of a transaction that are computed at once; a larger one goes through in portions."""

    portion_bytes_max: int = 256 * 1024 * 1024

    store_ahead_rows: int = 50_000
    """What a table gets in a transaction, if it has as many rows, is stored while the views are computed."""

    transaction_interval_s: float = 0.1
    """How long a running pipeline waits for more before it looks at its sources again."""

    producers_kept_days: float = 30.0
    """How long the last number of a producer is remembered after it was bound. What the producer repeats later than
    that is taken again."""

    producers_kept_min: int = 10_000
    """So many producers are remembered however long ago they pushed: those that pushed last."""

    push_buffer_bytes: int = 8 * 1024 * 1024
    """Pushed rows that wait in memory; beyond this they are staged as a fragment."""

    request_bytes_max: int = 64 * 1024 * 1024
    """The body of one HTTP request; it is held in memory while it is taken apart."""

    request_decoded_bytes_max: int = 512 * 1024 * 1024
    """What the body of one HTTP request comes to once it is decompressed and decoded."""

    bodies_bytes_max: int = 1024 * 1024 * 1024
    """What the bodies of all HTTP requests may take together, as they come and once they are decoded; one of them may
    go beyond it."""

    bodies_wait_s: float = 15.0
    """How long a request waits for room among them; then it is told to come again."""

    request_head_bytes_max: int = 64 * 1024
    """The first line and the headers of one HTTP request."""

    request_head_s: float = 15.0
    """How long they may take to come."""

    request_pause_s: float = 30.0
    """How long a client may pause while it sends a body, or takes an answer that is ready for it."""

    keep_alive_s: float = 75.0
    """How long an HTTP connection stays open without a request. Common proxies keep idle connections for 60 seconds: a
    longer time here lets the proxy close a connection first."""

    connections_max: int = 12_000
    """HTTP connections at the same time; one more is told to come again."""

    query_limit_s: float = 30.0
    """How long a query may take that is asked by HTTP or by the command line."""

    query_rows_max: int = 1_000_000
    """Rows of its answer."""

    query_bytes_max: int = 256 * 1024 * 1024
    """Of its answer, in memory."""

    query_memory_bytes: int = 1024 * 1024 * 1024
    """What one query may take, with the rows that it reads, beside what its process takes by itself. It is also the
    heap of the Spark that answers queries, which is at least 512 MiB."""

    query_threads: int = 2
    """Threads that compute one query."""

    query_spill_bytes: int = 8 * 1024 * 1024 * 1024
    """What Spark may write to disk for one query: rows that it sorts, joins or groups beyond its memory."""

    query_idle_s: float = 300.0
    """A process that answers queries ends when nobody has asked for so long."""

    query_read_rows_max: int = 50_000_000
    """Rows of each collection that DuckDB reads for a query: it has them all in memory."""

    query_small_rows: int = 2_000_000
    """A query over collections that have together more rows is answered by Spark, unless it asks for DuckDB."""

    queries_max: int = 4
    """Queries that DuckDB answers at the same time; one more waits. Spark answers one."""

    open_transactions_max: int = 100
    """Transactions that clients have begun by HTTP, and neither committed nor aborted."""

    open_transaction_bytes_max: int = 1024 * 1024 * 1024
    """The bodies that were pushed into one of them."""

    open_transaction_s: float = 300.0
    """How long one is kept after the client was last heard of."""

    checkpoint_interval_s: float = 60.0
    """How often a running pipeline makes a checkpoint, if anything changed."""

    checkpoints_kept: int = 2
    """How many are kept; at least two, so that one may be damaged."""

    lead_interval_s: float = 1.0
    """How often a replica that follows looks whether the one that leads is still there."""

    stall_after_s: float = 5.0
    """How long something may wait before status calls it stalled."""

    sink_lag_s: float = 60.0
    """A sink is `lagging` if the oldest transaction that it has not got was bound longer ago than this."""

    sink_lag_transactions: int = 10_000
    """A sink is `lagging` if it is more transactions behind than this, however old they are."""

    slow_transaction_s: float = 10.0
    """A transaction that takes longer is in the log, with what it spent its time on."""

    hang_after_s: float = 600.0
    """A process that makes no step for longer hangs: `/v1/health/live` says so, and if it leads, its heartbeat stops,
    so that another replica takes over after `writer_ttl_s` more. It must be longer than one call to Spark or to a
    source takes without finishing a task or giving rows. To wait for input, for storage or for the end of a pause
    is not to hang."""

    retry_view_s: float = 5.0
    """A view that failed is tried again, when its tables changed, at most this often."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or value <= 0:
                raise InvalidInput(where=f"settings.{field.name}", why=f"must be a positive number, not {value!r}")
        if self.compaction_fan_in < 2:
            raise InvalidInput(where="settings.compaction_fan_in", why="merging needs at least 2 batches")
        if self.checkpoints_kept < 2:
            raise InvalidInput(where="settings.checkpoints_kept", why="with less than 2, one damaged file is a loss")
        if self.beat_interval_s * 2 > min(self.lease_ttl_s, self.writer_ttl_s):
            raise InvalidInput(
                where="settings.beat_interval_s",
                why="must be at most half of lease_ttl_s and writer_ttl_s, or one late beat ends them",
            )
