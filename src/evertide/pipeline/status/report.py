"""The status of a pipeline as lines and tables for people: in a terminal, as text, or in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from evertide.formats import format_bytes, format_position, format_seconds, format_state, format_time, get_colour
from evertide.pipeline.records.ownership import ReplicaRole
from evertide.tables import TextTable

if TYPE_CHECKING:
    from evertide.pipeline.records.replica_record import ReplicaStatus
    from evertide.pipeline.sinks.sink_status import SinkStatus
    from evertide.pipeline.status.status import CollectionStatus, SourceStatus, Status
    from evertide.problem import Problem
    from evertide.sources.contract import Lag

Part = TextTable | Text


def describe_status(status: Status) -> Iterator[Part]:
    """State and cause first; then collections, sources, sinks, replicas and checkpoints, each after an empty line."""
    yield Text.assemble(format_state(status.state), f" since {format_time(status.since_s)}")
    for line in (status.why, status.remedy, _describe_age(status)):
        if line:
            yield Text(f"  {line}")
    if status.holder:
        where = f"process {status.pid} on {status.host}, " if status.host else ""
        yield Text(f"  by {where}writer {status.holder}")
    waiting = f", {status.bound - status.time} bound and waiting" if status.bound > status.time else ""
    yield Text(f"  time {status.time}{waiting}, generation {status.generation}")
    if status.collections:
        yield Text()
        yield make_collections_table(status.collections)
    for one in status.collections:
        if one.why:
            yield Text(f"  {one.name}: {one.why}", get_colour(one.state))
    if status.sources:
        yield Text()
        yield from _describe_sources(status.sources)
    if status.sinks:
        yield Text()
        yield from _describe_sinks(status.sinks)
    yield from _describe_replicas(status.replicas)
    if status.checkpoints:
        numbered = ", ".join(f"{number} at time {time}" for number, time in status.checkpoints)
        yield Text()
        yield Text.assemble(("Checkpoints", "bold"), f" {numbered}")


def _describe_age(status: Status) -> str:
    if status.stored_at_s is None:
        return ""
    return f"the storage does not answer; this status is from {format_time(status.stored_at_s)}"


def _describe_replicas(replicas: tuple[ReplicaStatus, ...]) -> Iterator[Part]:
    """Nothing if the leader, which the first lines name, is the only one."""
    if all(one.role == ReplicaRole.LEADS for one in replicas):
        return
    rows = [
        (one.role, one.state, one.time, one.behind, str(one.work or ""), f"{one.host} {one.pid}", one.writer)
        for one in replicas
    ]
    columns = ("role", "state", "time", "behind", "work", "process", "writer")
    yield Text()
    yield TextTable("Replicas", columns, rows, right=("time", "behind"))


def _describe_sources(sources: tuple[SourceStatus, ...]) -> Iterator[Part]:
    told_at_s = max((source.told_at_s for source in sources if source.told_at_s is not None), default=None)
    title = "Sources" if told_at_s is None else f"Sources, as of {format_time(told_at_s)}"
    rows = [
        (
            source.name,
            format_state(source.state),
            ", ".join(source.tables),
            format_lag(source.lag),
            format_position(source.position),
        )
        for source in sources
    ]
    yield TextTable(title, ("source", "state", "tables", "lag", "position"), rows)
    for source in sources:
        yield from list_problem_lines(source.name, source.problems)


def _describe_sinks(sinks: tuple[SinkStatus, ...]) -> Iterator[Part]:
    rows = [
        (one.name, format_state(one.state or "unknown"), one.collection, one.connector, one.last, one.behind)
        for one in sinks
    ]
    columns = ("sink", "state", "collection", "connector", "last", "behind")
    yield TextTable("Sinks", columns, rows, right=("last", "behind"))
    for one in sinks:
        yield from list_problem_lines(one.name, () if one.problem is None else (one.problem,))


def list_problem_lines(name: str, problems: Iterable[Problem]) -> Iterator[Text]:
    """The problems of a source or a sink: since when, why, and what to do."""
    for problem in problems:
        since = f"{problem.state} since {format_time(problem.since_s)}"
        retry = "" if problem.wait_s is None else f" (retry in {format_seconds(problem.wait_s)})"
        yield Text(f"  {name}: {since}: {problem.why}{retry}", get_colour(problem.state))
        if problem.remedy not in problem.why:
            yield Text(f"    {problem.remedy}")


def make_collections_table(collections: tuple[CollectionStatus, ...]) -> TextTable:
    rows = [
        (
            one.name,
            one.kind,
            format_state(one.state),
            one.upper,
            one.since,
            f"{one.rows:,}",
            format_bytes(one.bytes),
            one.shapes,
        )
        for one in collections
    ]
    numbers = ("upper", "since", "changes", "size", "shapes")
    return TextTable("Collections", ("collection", "kind", "state", *numbers), rows, right=numbers)


def format_lag(lag: Lag | None) -> str:
    """The lag of a source; `-` if it is not known."""
    if lag is None:
        return "-"
    parts = [
        "" if lag.bytes is None else format_bytes(lag.bytes),
        "" if lag.rows is None else f"{lag.rows:,} rows",
        "" if lag.files is None else f"{lag.files:,} files",
        "" if lag.seconds is None else format_seconds(lag.seconds),
    ]
    return ", ".join(filter(None, parts)) or "-"
