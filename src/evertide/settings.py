"""The settings of a process, as frozen values. Components (clock, stores) are passed separately."""

from __future__ import annotations

from dataclasses import dataclass, fields

from evertide.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that a user may tune. They affect when and how collections are written, never their content."""

    confirm_rows: int = 1_000_000
    """`evertide run` asks before a changed script makes it recompute stored views from more rows than this."""

    inline_bytes_max: int = 64 * 1024
    """A batch of up to this size is stored inside the shard's state, without a blob; so are pushed rows inside the
    journal's record of their transaction."""

    part_rows_max: int = 1_000_000
    """Rows per part; a larger batch has several parts."""

    row_group_rows: int = 65_536
    """Rows per Parquet row group of a part."""

    rollup_every_diffs: int = 128
    """A roll-up of a shard's state is written after this number of diffs."""

    compaction_fan_in: int = 8
    """The number of adjacent batches of similar size that compaction merges into one."""

    compaction_rows_max: int = 1_000_000
    """Rows that compaction has in memory at a time; a larger merge is done slice by slice."""

    lease_ttl_s: float = 60.0
    """A reader may lose its lease after this time without a heartbeat."""

    writer_ttl_s: float = 20.0
    """A writer may be fenced after this time without a heartbeat. It takes this long to detect that a replica on
    another machine is dead."""

    heartbeat_interval_s: float = 5.0
    """Interval of the heartbeats of leases and writers."""

    maintenance_interval_s: float = 1.0
    """How often changed shards are checked for compaction."""

    garbage_interval_s: float = 30.0
    """Interval of garbage collection over all shards."""

    scrub_bytes_per_s: int = 16 * 1024 * 1024
    """How fast the state parts in use are read in the background and compared with their checksums."""

    scrub_interval_s: float = 86_400.0
    """After this time, a state part is read and compared again."""

    poll_interval_s: float = 0.05
    """How often a waiting reader polls for appends of other processes."""

    fetchers: int = 4
    """Parts that a reader fetches concurrently."""

    retry_wait_s: float = 0.05
    """The wait before the first retry of a storage call; it doubles with each retry, up to `retry_wait_max_s`."""

    retry_wait_max_s: float = 5.0

    retry_limit_s: float = 30.0
    """How long a storage call is retried before its error is raised to the caller."""

    postgres_silence_s: float = 30.0
    """How long PostgreSQL as Meta may take to answer a call, in addition to `retry_limit_s` for a lock, before the
    connection is closed. Network limits are libpq's parameters in the URL: `connect_timeout` (10),
    `tcp_user_timeout` (30000 ms), `keepalives_idle` (10), `keepalives_interval` (5), `keepalives_count` (3)."""

    transaction_rows_max: int = 100_000
    """Rows that a transaction reads from its sources. A unit that a source never splits may exceed it."""

    transaction_bytes_max: int = 64 * 1024 * 1024

    replay_rows_max: int = 50_000
    """Changes of the transactions that are replayed in one step; a larger transaction is replayed alone."""

    portion_rows_max: int = 1_000_000
    """Rows of a transaction that are computed in one step; a larger transaction is computed in portions."""

    portion_bytes_max: int = 256 * 1024 * 1024

    wide_rows_min: int = 1_000_000
    """Views whose tables store at least this number of rows are computed from scratch by executors, which read and
    write the rows themselves."""

    store_ahead_rows: int = 50_000
    """A table's delta of at least this number of rows is stored while the views are computed."""

    transaction_interval_s: float = 0.1
    """How long a running pipeline waits between two polls of its sources."""

    producers_kept_days: float = 30.0
    """How long the last number of a producer is kept after it was bound. A push that is repeated later is applied
    again."""

    producers_kept_min: int = 10_000
    """The number of producers, those that pushed last, that are kept regardless of age."""

    push_buffer_bytes: int = 8 * 1024 * 1024
    """Pushed rows that are kept in memory; if there are more, they are staged as a fragment."""

    request_bytes_max: int = 64 * 1024 * 1024
    """Maximum size of the body of an HTTP request, which is in memory while it is decoded."""

    request_decoded_bytes_max: int = 512 * 1024 * 1024
    """Maximum size of the body of an HTTP request after decompression and decoding."""

    bodies_bytes_max: int = 1024 * 1024 * 1024
    """Memory for the bodies of all HTTP requests together, encoded and decoded. One request may exceed it."""

    bodies_wait_s: float = 15.0
    """How long a request waits for memory within `bodies_bytes_max` before the server answers 503 with Retry-After."""

    request_head_bytes_max: int = 64 * 1024
    """Maximum size of the first line and the headers of an HTTP request."""

    request_head_s: float = 15.0
    """How long a client may take to send the first line and the headers."""

    request_pause_s: float = 30.0
    """How long a client may pause while it sends a body or receives a response."""

    keep_alive_s: float = 75.0
    """How long an HTTP connection stays open without a request. Common proxies close idle connections after 60 seconds;
    a longer time here lets the proxy close first."""

    connections_max: int = 12_000
    """Maximum number of HTTP connections; the server answers one more with 503 and Retry-After."""

    query_limit_s: float = 30.0
    """How long a query over HTTP or from the command line may take."""

    query_rows_max: int = 1_000_000
    """Maximum rows of a query's result."""

    query_bytes_max: int = 256 * 1024 * 1024
    """Maximum size of a query's result in memory."""

    query_memory_bytes: int = 1024 * 1024 * 1024
    """Memory of one query, including the rows that it reads, in addition to what its worker needs when idle. It is also
    the heap of Spark's worker, which is at least 512 MiB."""

    query_threads: int = 2
    """Threads that compute one query."""

    query_spill_bytes: int = 8 * 1024 * 1024 * 1024
    """Bytes that Spark may spill to disk for one query."""

    query_idle_s: float = 300.0
    """A worker ends after this time without a query."""

    query_read_rows_max: int = 50_000_000
    """Maximum rows per collection that DuckDB reads for a query, all of them in memory."""

    query_small_rows: int = 2_000_000
    """Spark answers a query over collections with more rows in total, unless the request specifies DuckDB."""

    queries_max: int = 4
    """Queries that DuckDB answers concurrently; further ones wait. Spark answers one at a time."""

    open_transactions_max: int = 100
    """Maximum number of transactions that clients began over HTTP and did not commit or abort yet."""

    open_transaction_bytes_max: int = 1024 * 1024 * 1024
    """Maximum size of the bodies pushed into one open transaction."""

    open_transaction_s: float = 300.0
    """An open transaction expires after this time without a request of its client."""

    checkpoint_interval_s: float = 60.0
    """Interval of checkpoints of a running pipeline, if anything changed."""

    checkpoints_kept: int = 2
    """The number of checkpoints that are kept; at least 2, in case one is damaged."""

    lead_interval_s: float = 1.0
    """How often a follower checks whether the leader is alive."""

    stall_after_s: float = 5.0
    """How long a component may wait before `status` reports it as stalled."""

    sink_lag_s: float = 60.0
    """A sink is `lagging` if the oldest transaction that it has not received was bound longer ago than this."""

    sink_lag_transactions: int = 10_000
    """A sink is `lagging` if it is behind by more transactions than this, regardless of their age."""

    slow_transaction_s: float = 10.0
    """A transaction that takes longer is logged, with the time of each phase. The first one with rows
    is logged as information only."""

    hang_after_s: float = 600.0
    """A process that makes no step for this time hangs: `/v1/health/live` reports it, and a leader stops its heartbeat,
    so that another replica takes over after a further `writer_ttl_s`. It must be longer than any call to Spark or to
    a source that finishes no task and returns no rows. Waiting for input, storage or the end of a pause does not
    count."""

    retry_view_s: float = 5.0
    """The minimum time between two retries of a failed view, which is retried when its tables change."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or value <= 0:
                raise InvalidInput(where=f"settings.{field.name}", why=f"must be a positive number, not {value!r}")
        if self.compaction_fan_in < 2:
            raise InvalidInput(where="settings.compaction_fan_in", why="must be at least 2: a merge needs two batches")
        if self.checkpoints_kept < 2:
            why = "must be at least 2, in case one checkpoint is damaged"
            raise InvalidInput(where="settings.checkpoints_kept", why=why)
        if self.heartbeat_interval_s * 2 > min(self.lease_ttl_s, self.writer_ttl_s):
            raise InvalidInput(
                where="settings.heartbeat_interval_s",
                why="must be at most half of lease_ttl_s and of writer_ttl_s, so that one late heartbeat ends neither",
            )
