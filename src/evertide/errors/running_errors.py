"""Errors of a running pipeline: sources, sinks, views, Spark, and bugs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from evertide.errors.base import EvertideError
from evertide.errors.storage_errors import Unavailable


def name_views(views: Collection[str]) -> str:
    """`view a` or `views a, b`: the views as errors and logs name them."""
    return f"{'view' if len(views) == 1 else 'views'} {', '.join(views)}"


class ScratchUnavailable(Unavailable):
    """`path` is the directory of temporary files. No row is the cause, so no view fails."""

    error_code = "scratch_unavailable"
    summary = "Temporary files cannot be written or read; nothing was changed"
    message_format = "temporary files in {path} cannot be written or read: {why}"
    remedy = "Free some space there, or set TMPDIR to another directory; Evertide retries."


class SystemRefused(Unavailable):
    """`path` names the transaction. No row is the cause, so no view fails."""

    error_code = "system_refused"
    summary = "The operating system refused a call; the transaction waits"
    message_format = "{path}: the operating system refused a call: {why}"
    remedy = "Evertide retries; if it lasts, check open files, memory and disks. The log has the call."


class SparkAway(Unavailable):
    """`path` is Spark's master. No row is the cause, so no view fails."""

    error_code = "spark_away"
    summary = "Spark could not finish a job; nothing was changed"
    message_format = "Spark at {path} could not finish a job: {why}"
    remedy = "Evertide retries; if it lasts, check the memory and the logs of the executors."


class RecomputationDelayed(Unavailable):
    """`path` names the views. A follower does not continue without their state."""

    error_code = "recomputing"
    summary = "The state of views has diverged several times; Evertide waits before it recomputes it"
    message_format = "{path}: {why}"
    remedy = (
        "Evertide recomputes it. Compare the versions of the replicas, and send us the evidence (docs/operating.md)."
    )


class QueryEnded(Unavailable):
    """`path` is the engine. Queries run in processes of their own, so nothing else is affected."""

    error_code = "query_ended"
    summary = "The query process ended before it answered"
    message_format = "the {path} query process ended before it answered: {why}"
    remedy = "Send the query again; the server starts another process. If the same query ends it again, ask for less."


@dataclass(eq=False, repr=False)
class SourceFailed(EvertideError):
    error_code = "source_failed"
    exit_code = 10
    summary = "A source cannot continue"
    message_format = "source {source!r}: {where}: {why}"
    remedy = "Correct the cause; Evertide retries. Nothing is lost, and other sources continue."

    source: str
    where: str
    why: str


class SourceAway(SourceFailed):
    """The connection was cut, or the source's server is restarting."""

    error_code = "source_away"
    summary = "A source cannot be reached"
    message_format = "source {source!r} cannot be reached: {where}: {why}"
    remedy = "Evertide reconnects and continues where it stopped; if it lasts, check the source's server."


class SourceChanged(SourceFailed):
    """Input that was bound can no longer be read as it was."""

    error_code = "source_changed"
    summary = "A source no longer returns the input that was read from it before"
    message_format = "source {source!r} has changed: {where}: {why}"
    remedy = "Restore the original input. For tables that are kept, input that is already committed is not needed."


@dataclass(eq=False, repr=False)
class SinkFailed(EvertideError):
    error_code = "sink_failed"
    exit_code = 13
    summary = "A sink cannot continue"
    message_format = "sink {sink!r}: {where}: {why}"
    remedy = "Correct the cause; Evertide retries and continues where the sink stopped. Nothing else waits for it."

    sink: str
    where: str
    why: str


@dataclass(eq=False, repr=False)
class Diverged(EvertideError):
    """I8: `where` names the source or shard. Counts and digests are those of the transaction's changes."""

    error_code = "diverged"
    exit_code = 11
    summary = "A replay computed something else than what is recorded (I8)"
    message_format = "{where}: replaying transaction {time} gave {found}, but {expected} is recorded"
    remedy = (
        "Nothing more is committed. Restore a source that has changed; a view is recomputed from its tables on restart."
    )

    where: str
    time: int
    expected: str
    found: str

    @property
    def message(self) -> str:
        """Without `expected`, `found` is the whole difference."""
        return super().message if self.expected else f"{self.where}: transaction {self.time} gave {self.found}"


@dataclass(eq=False, repr=False)
class SparkEnded(EvertideError):
    """The JVM of this process died, or its application was ended from outside: no job can run any more."""

    error_code = "spark_ended"
    exit_code = 14
    summary = "Spark has ended"
    message_format = "Spark at {master} has ended: {why}"
    remedy = "Restart the process: it continues where it was. Then find out why the JVM or the cluster's master died."

    master: str
    why: str


@dataclass(eq=False, repr=False)
class ViewFailed(EvertideError):
    error_code = "view_failed"
    exit_code = 12
    summary = "A view cannot be computed"
    message_format = "transaction {time} fails: {why}"
    remedy = (
        "Correct the row or the query, and Evertide retries; if neither is wrong, run `evertide retry`. "
        "Other views continue."
    )

    views: tuple[str, ...]
    time: int
    why: str

    @property
    def message(self) -> str:
        """`views` is empty if only the state of a table is wrong."""
        return f"{name_views(self.views)}: {super().message}" if self.views else super().message


class StateDiverged(ViewFailed):
    """I8, X7: no row is the cause. `time` is the transaction that showed it."""

    error_code = "state_diverged"
    summary = "The state of views is wrong, and is discarded"
    message_format = "the state is wrong, as transaction {time} shows: {why}"
    remedy = "Evertide recomputes the views from their tables. Send us the evidence (docs/operating.md)."


@dataclass(eq=False, repr=False)
class Unexpected(EvertideError):
    """`where` names the thread, function or transaction, `why` the error. The log has the traceback."""

    error_code = "unexpected"
    exit_code = 18
    summary = "A bug in Evertide"
    message_format = "internal error in {where}: {why}"
    remedy = (
        "Report this as a bug, with the log. If the process ended, restart it: nothing that was acknowledged is lost."
    )

    where: str
    why: str


class StateInconsistent(Unexpected):
    """`where` names the state of a view, or a collection. Every file was read as it was written."""

    error_code = "state_inconsistent"
    summary = "Rows contradict each other, in files that are not damaged: a bug in Evertide"
    message_format = "{where}: the rows contradict each other: {why}"
    remedy = (
        "Evertide recomputes views whose tables are kept. If the process ended, restart it: nothing that was "
        "acknowledged is lost. Report this as a bug, with the log."
    )
