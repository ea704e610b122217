"""The catalog of all metrics: name, kind, labels and description. docs/observing.md repeats this table.

The number of label values is bounded by what a script declares and by constants in the code: names of collections,
sources, sinks and arrangements, phases, states, error codes, declared routes. A transaction's number, a key or a path
is never a label.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL", "BY_NAME", "Metric"]


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
    _gauge("up", "1 if the storage was asked how the pipeline fares, and answered; 0 while it is away."),
    _gauge("alive", "1 if all threads run and the loop comes round; as /v1/health/live says it."),
    _gauge("status_age_seconds", "How old those values are that come from the storage."),
    _gauge("doing_seconds", "For how long the process is in its present phase.", "phase"),
    _gauge("build_info", "1; what runs.", "version", "python", "spark"),
    _gauge("jvm_memory_bytes", "Memory of Spark's driver: heap or other, used, committed or at most.", "area", "kind"),
    _sampled_counter("spark_jobs", "Jobs that Spark began in this process."),
    # The pipeline
    _gauge("state", "1 for the state that the pipeline is in.", "state"),
    _gauge("leads", "1 if this process leads: it reads sources, writes to sinks, makes checkpoints."),
    _gauge("time", "The last transaction that is in all collections."),
    _gauge("bound_time", "The last transaction that is bound; more than evertide_time: it is under way, or waits."),
    _gauge("flushed_time", "Up to this transaction every sink has everything."),
    _gauge("generation", "How often what the pipeline declares was changed."),
    _gauge(
        "problem", "1 for each thing that is wrong now; status says why, and what to do.", "part", "name", "error_code"
    ),
    # Transactions
    _counter("transactions", "Transactions committed here, taken after a peer, or replayed after a start.", "how"),
    _histogram("transaction", "From the first row read to the commit, of those committed here."),
    _histogram("transaction_phase", "The phases of transactions: read, bind, compute, commit, replay.", "phase"),
    _counter("source_rows", "Rows that a source gave to transactions committed here.", "source"),
    _counter("changes", "Changes that were committed to a collection here.", "collection"),
    _counter("changes_bytes", "The same as bytes stored.", "collection"),
    _counter("faults", "What failed, each time it did; most is tried again by itself.", "part", "name", "error_code"),
    # Collections and state
    _gauge("collection_upper", "The first time that is not complete yet.", "collection", "kind"),
    _gauge("collection_since", "The first time that can still be read.", "collection", "kind"),
    _gauge("collection_changes", "Changes stored, of which some may take back others.", "collection", "kind"),
    _gauge("collection_bytes", "What they take.", "collection", "kind"),
    _gauge("collection_parts", "In how many parts.", "collection", "kind"),
    _gauge("collection_state", "1 for the state that it is in: running, hydrating, failed.", "collection", "state"),
    _gauge("arrangement_rows", "Rows of an arrangement, of which some may take back others.", "arrangement"),
    _gauge("arrangement_bytes", "What they take, in memory and in parts.", "arrangement"),
    _gauge("arrangement_parts", "In how many parts.", "arrangement"),
    # Sources, sinks, replicas
    _gauge("source_state", "1 for the state that a source is in: running, reconnecting, stalled.", "source", "state"),
    _gauge("source_lag_bytes", "What waits at a source and is not bound, if it knows.", "source"),
    _gauge("source_lag_rows", "The same as rows.", "source"),
    _gauge("source_lag_files", "The same as files.", "source"),
    _gauge("source_lag_seconds", "For how long the oldest of it waits.", "source"),
    _gauge(
        "sink_state", "1 for the state that a sink is in: running, waiting, lagging, stalled, failed.", "sink", "state"
    ),
    _gauge("sink_behind", "Transactions that a sink has not got.", "sink"),
    _counter("sink_rows", "Changes that were written to a sink.", "sink"),
    _histogram("sink_delivery", "Writing one transaction to a sink.", "sink"),
    _gauge("replicas", "Processes that run the pipeline, by what they do: leads, follows, read-only.", "role"),
    _gauge(
        "replica_behind", "Transactions that are committed and not taken by a replica on that host.", "host", "role"
    ),
    # Checkpoints, leases, storage
    _gauge("checkpoint_time", "The newest checkpoint holds all transactions below this time."),
    _gauge("checkpoints", "Checkpoints that are kept."),
    _counter("checkpoint_files_bytes", "Files that checkpoints made here name; most are named by several."),
    _histogram("checkpoint", "Making a checkpoint; transactions wait for it."),
    _gauge("leases", "Leases that readers in this process hold."),
    _sampled_counter("leases_lost", "Leases that ended under a reader in this process."),
    _histogram("storage", "Calls of the storage.", "call"),
    _counter("storage_bytes", "Bytes that were read or written by them.", "call"),
    _counter("storage_faults", "Those that failed; most are tried again.", "call", "error_code"),
    # HTTP and shapes
    _counter("http_requests", "Requests answered.", "method", "route", "code"),
    _histogram("http_request", "Answering them; not those for shapes that wait.", "method", "route"),
    _counter("shape_requests", "Requests for shapes: snapshot, log, live or stream.", "kind", "code"),
    _histogram("shape_request", "Answering them; those that are live wait for a change, or for their time.", "kind"),
    _gauge("shapes", "Shapes that this process follows."),
    _gauge("shape_clients", "Clients that wait for a change."),
    _gauge("shape_log_bytes", "What their logs take in memory."),
    _gauge("shape_feeds_standing", "Collections whose live clients get an error, as their changes cannot be read."),
    _sampled_counter("shape_log_entries", "Entries that were appended to the logs of shapes."),
)

BY_NAME = {metric.name: metric for metric in ALL}
