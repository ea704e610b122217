"""The catalog of all metrics: name, kind, labels and description. docs/observing.md repeats this table.

The number of label values is bounded by what a script declares and by constants in the code: names of collections,
sources, sinks and arrangements, phases, states, error codes, declared routes. A transaction's number, a key or a path
is never a label.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """The name in a scrape; for a histogram, without `_bucket`, `_sum` and `_count`."""
    kind: str
    """`counter`, `gauge` or `histogram`."""
    description: str
    labels: tuple[str, ...] = ()
    is_sampled: bool = False
    """Whether the value is sampled at a scrape; otherwise events are counted as they happen."""


def _counter(name: str, description: str, *labels: str) -> Metric:
    return Metric(f"evertide_{name}_total", "counter", description, labels)


def _sampled_counter(name: str, description: str, *labels: str) -> Metric:
    return Metric(f"evertide_{name}_total", "counter", description, labels, is_sampled=True)


def _gauge(name: str, description: str, *labels: str) -> Metric:
    return Metric(f"evertide_{name}", "gauge", description, labels, is_sampled=True)


def _histogram(name: str, description: str, *labels: str) -> Metric:
    return Metric(f"evertide_{name}_seconds", "histogram", description, labels)


ALL: tuple[Metric, ...] = (
    # The process
    _gauge("up", "1 if storage answered the last status read; 0 while it does not answer."),
    _gauge("alive", "1 if all threads run and the process makes progress, as in /v1/health/live."),
    _gauge("status_age_seconds", "Age of the values that are read from the storage."),
    _gauge("doing_seconds", "Time that the process has spent in its current phase.", "phase"),
    _gauge("build_info", "Always 1; the labels have the versions.", "version", "python", "spark"),
    _gauge("jvm_memory_bytes", "Memory of Spark's driver: heap or other; used, committed or maximum.", "area", "kind"),
    _sampled_counter("spark_jobs", "Spark jobs started by this process."),
    # The pipeline
    _gauge("state", "1 for the current state of the pipeline.", "state"),
    _gauge("leads", "1 if this process leads: it reads sources, writes to sinks, makes checkpoints."),
    _gauge("time", "The last transaction that is in all collections."),
    _gauge("bound_time", "The last bound transaction; if above evertide_time, it is being computed or waits."),
    _gauge("flushed_time", "Every sink has all transactions up to this one."),
    _gauge("generation", "Number of the current generation; it increases when the members change."),
    _gauge("problem", "1 for each current problem; status has its cause and remedy.", "part", "name", "error_code"),
    # Transactions
    _counter("transactions", "Transactions that this process committed, followed (peer) or replayed.", "how"),
    _histogram(
        "transaction", "Time from the first row read to the commit, for transactions that this process committed."
    ),
    _histogram("transaction_phase", "Time per phase of a transaction: read, bind, compute, commit, replay.", "phase"),
    _counter("source_rows", "Rows from a source in transactions that this process committed.", "source"),
    _counter("changes", "Changes that this process committed to a collection.", "collection"),
    _counter("changes_bytes", "Stored bytes of the changes that this process committed.", "collection"),
    _counter("faults", "Failures, one per occurrence; most are retried.", "part", "name", "error_code"),
    # Collections and state
    _gauge("collection_upper", "The first time that is not complete yet.", "collection", "kind"),
    _gauge("collection_since", "The first time that can still be read.", "collection", "kind"),
    _gauge("collection_changes", "Stored changes; some may cancel each other.", "collection", "kind"),
    _gauge("collection_bytes", "Size of the stored changes.", "collection", "kind"),
    _gauge("collection_parts", "Number of parts that hold the stored changes.", "collection", "kind"),
    _gauge(
        "collection_state",
        "1 for the current state of a collection: running, hydrating, failed.",
        "collection",
        "state",
    ),
    _gauge("arrangement_rows", "Rows of an arrangement; some may cancel each other.", "arrangement"),
    _gauge("arrangement_bytes", "Size of the rows of an arrangement, in memory and in parts.", "arrangement"),
    _gauge("arrangement_parts", "Number of parts that hold the rows of an arrangement.", "arrangement"),
    # Sources, sinks, replicas
    _gauge("source_state", "1 for the current state of a source: running, reconnecting, stalled.", "source", "state"),
    _gauge("source_lag_bytes", "Bytes that wait at a source and are not bound, if known.", "source"),
    _gauge("source_lag_rows", "Rows that wait at a source, if known.", "source"),
    _gauge("source_lag_files", "Files that wait at a source, if known.", "source"),
    _gauge("source_lag_seconds", "Age of the oldest waiting input.", "source"),
    _gauge(
        "sink_state", "1 for the current state of a sink: running, waiting, lagging, stalled, failed.", "sink", "state"
    ),
    _gauge("sink_behind", "Transactions that are not yet written to a sink.", "sink"),
    _counter("sink_rows", "Changes written to a sink.", "sink"),
    _histogram("sink_delivery", "Time to write one transaction to a sink.", "sink"),
    _gauge("replicas", "Processes that run the pipeline, by role: leads, follows, read-only.", "role"),
    _gauge("replica_behind", "Committed transactions that a replica on that host has not applied.", "host", "role"),
    # Checkpoints, leases, storage
    _gauge("checkpoint_time", "The newest checkpoint includes all transactions below this time."),
    _gauge("checkpoints", "Number of checkpoints kept."),
    _counter(
        "checkpoint_files_bytes",
        "Bytes of the files that checkpoints of this process name; most files are shared by several.",
    ),
    _histogram("checkpoint", "Time to make a checkpoint; transactions wait for it."),
    _gauge("leases", "Leases held by readers in this process."),
    _sampled_counter("leases_lost", "Leases that readers in this process lost."),
    _histogram("storage", "Duration of storage calls.", "call"),
    _counter("storage_bytes", "Bytes read or written by storage calls.", "call"),
    _counter("storage_faults", "Storage calls that failed; most are retried.", "call", "error_code"),
    # HTTP and shapes
    _counter("http_requests", "Answered requests.", "method", "route", "code"),
    _histogram(
        "http_request", "Time to answer a request, except shape requests that wait for changes.", "method", "route"
    ),
    _counter("shape_requests", "Requests for shapes: snapshot, log, live or stream.", "kind", "code"),
    _histogram(
        "shape_request", "Time to answer a shape request; live requests wait for a change or a time-out.", "kind"
    ),
    _gauge("shapes", "Shapes that this process follows."),
    _gauge("shape_clients", "Clients that wait for a change."),
    _gauge("shape_log_bytes", "Memory used by the logs of shapes."),
    _gauge("shape_feeds_standing", "Collections whose live clients get errors because their changes cannot be read."),
    _sampled_counter("shape_log_entries", "Entries appended to the logs of shapes."),
)

BY_NAME = {metric.name: metric for metric in ALL}
