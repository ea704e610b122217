"""Shows the status of a pipeline as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.text import Text

from evertide.cli.output.output import (
    STATE_COLOURS,
    Output,
    format_bytes,
    format_lag,
    format_position,
    format_seconds,
    format_time,
    make_table,
)
from evertide.pipeline.records.ownership import ReplicaRole
from evertide.pipeline.records.replica_record import ReplicaStatus
from evertide.pipeline.sinks.sink_status import SinkStatus
from evertide.pipeline.status.status import CollectionStatus, Problem, SourceStatus, Status

__all__ = ["format_problems", "format_state", "make_collections_table", "show_status"]


def show_status(output: Output, found: Status) -> None:
    output.print_message(Text.assemble(format_state(found.state), f" since {format_time(found.since_s)}"))
    for line in (found.why, found.remedy, _describe_age(found)):
        if line:
            output.print_message(Text(f"  {line}"))
    if found.holder:
        where = f"process {found.pid} on {found.host}, " if found.host else ""
        output.print_message(Text(f"  by {where}writer {found.holder}"))
    waiting = f", {found.bound - found.time} bound and waiting" if found.bound > found.time else ""
    output.print_message(Text(f"  time {found.time}{waiting}, generation {found.generation}"))
    if found.collections:
        output.print_message()
        output.print_message(make_collections_table(found.collections))
    for one in found.collections:
        if one.why:
            output.print_message(Text(f"  {one.name}: {one.why}", STATE_COLOURS.get(one.state, "red")))
    if found.sources:
        output.print_message()
        _show_sources(output, found.sources)
    if found.sinks:
        output.print_message()
        _show_sinks(output, found.sinks)
    _show_replicas(output, found.replicas)
    if found.checkpoints:
        numbered = ", ".join(f"{number} at time {time}" for number, time in found.checkpoints)
        output.print_message()
        output.print_message(Text.assemble(("Checkpoints", "bold"), f" {numbered}"))


def _describe_age(found: Status) -> str:
    if found.stored_at_s is None:
        return ""
    return f"the storage does not answer; this status is from {format_time(found.stored_at_s)}"


def _show_replicas(output: Output, replicas: tuple[ReplicaStatus, ...]) -> None:
    """Nothing if the leader, which the first lines name, is the only one."""
    if all(one.role == ReplicaRole.LEADS for one in replicas):
        return
    rows = [
        (one.role, one.state, one.time, one.behind, str(one.work or ""), f"{one.host} {one.pid}", one.writer)
        for one in replicas
    ]
    columns = ("role", "state", "time", "behind", "work", "process", "writer")
    output.print_message()
    output.print_message(make_table("Replicas", columns, rows, right=("time", "behind")))


def _show_sources(output: Output, sources: tuple[SourceStatus, ...]) -> None:
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
    output.print_message(make_table(title, ("source", "state", "tables", "lag", "position"), rows))
    for source in sources:
        for line in format_problems(source.name, source.problems):
            output.print_message(line)


def _show_sinks(output: Output, sinks: tuple[SinkStatus, ...]) -> None:
    rows = [
        (one.name, format_state(one.state or "unknown"), one.collection, one.connector, one.last, one.behind)
        for one in sinks
    ]
    columns = ("sink", "state", "collection", "connector", "last", "behind")
    output.print_message(make_table("Sinks", columns, rows, right=("last", "behind")))
    for one in sinks:
        for line in format_problems(one.name, () if one.problem is None else (one.problem,)):
            output.print_message(line)


def format_problems(name: str, problems: Iterable[Problem]) -> Iterator[Text]:
    """The problems of a source or a sink: since when, why, and what to do."""
    for problem in problems:
        colour = STATE_COLOURS.get(problem.state, "red")
        since = f"{problem.state} since {format_time(problem.since_s)}"
        retry = "" if problem.wait_s is None else f" (retry in {format_seconds(problem.wait_s)})"
        yield Text(f"  {name}: {since}: {problem.why}{retry}", colour)
        if problem.remedy not in problem.why:
            yield Text(f"    {problem.remedy}")


def format_state(state: str) -> Text:
    return Text(state, STATE_COLOURS.get(state, "red"))


def _describe_collection(one: CollectionStatus) -> tuple[str, str, Any]:
    return one.name, one.kind, format_state(one.state)


def make_collections_table(collections: tuple[CollectionStatus, ...]) -> Any:
    rows = [
        (*_describe_collection(one), one.upper, one.since, f"{one.rows:,}", format_bytes(one.bytes), one.shapes)
        for one in collections
    ]
    numbers = ("upper", "since", "changes", "size", "shapes")
    return make_table("Collections", ("collection", "kind", "state", *numbers), rows, right=numbers)
