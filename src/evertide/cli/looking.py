"""`status`, `journal`, `checkpoints`: what a storage says of its pipeline. No Spark, nothing is taken over."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from evertide.cli.options import Json, Meta, Storage
from evertide.cli.output import (
    STATE_COLOURS,
    Output,
    bytes_text,
    guarded,
    plain,
    position_text,
    table_of,
    time_text,
)
from evertide.pipeline.reader import Reader
from evertide.pipeline.status import CollectionStatus, Status

__all__ = ["checkpoints", "collections_table", "journal", "state_text", "status"]


@guarded
def status(*, storage: Storage, meta: Meta = None, is_json: Json = False) -> None:
    """What the pipeline of a storage is doing, and what is wrong with it. Asks the storage only.

    Example: evertide status --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with Reader.open(storage, meta) as reader:
        found = reader.status()
    if is_json:
        output.document({**plain(found), "checkpoints": _numbered(found)})
    else:
        _show(output, found)


def _numbered(found: Status) -> list[dict[str, int]]:
    return [{"number": number, "time": time} for number, time in found.checkpoints]


def _show(output: Output, found: Status) -> None:
    output.say(Text.assemble(state_text(found.state), f" since {time_text(found.since_s)}"))
    for line in (found.why, found.remedy):
        if line:
            output.say(Text(f"  {line}"))
    if found.holder:
        output.say(Text(f"  by process {found.pid} on {found.host}, writer {found.holder}"))
    waiting = f", {found.bound - found.time} bound and waiting" if found.bound > found.time else ""
    output.say(Text(f"  time {found.time}{waiting}, generation {found.generation}"))
    if found.collections:
        output.say()
        output.say(collections_table(found.collections))
    for one in found.collections:
        if one.why:
            output.say(Text(f"  {one.name}: {one.why}", STATE_COLOURS.get(one.state, "red")))
    if found.sources:
        rows = [(source.name, position_text(source.position)) for source in found.sources]
        output.say()
        output.say(table_of("Sources", ("source", "position"), rows))
    if found.sinks:
        told = [(one.name, one.collection, one.connector, one.last, one.behind) for one in found.sinks]
        output.say()
        output.say(table_of("Sinks", ("sink", "of", "connector", "last", "behind"), told, right=("last", "behind")))
    if found.checkpoints:
        numbered = ", ".join(f"{number} at time {time}" for number, time in found.checkpoints)
        output.say()
        output.say(Text.assemble(("Checkpoints", "bold"), f" {numbered}"))


def state_text(state: str) -> Text:
    return Text(state, STATE_COLOURS.get(state, "red"))


def collections_table(collections: tuple[CollectionStatus, ...]) -> Any:
    rows = [
        (one.name, one.kind, state_text(one.state), one.upper, one.since, f"{one.rows:,}", bytes_text(one.bytes))
        for one in collections
    ]
    numbers = ("upper", "since", "changes", "size")
    return table_of("Collections", ("collection", "kind", "state", *numbers), rows, right=numbers)


@guarded
def journal(
    *,
    storage: Storage,
    first: Annotated[int, typer.Option("--from", metavar="T", help="First transaction.")] = 0,
    last: Annotated[int | None, typer.Option("--to", metavar="T", help="Last transaction.")] = None,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Which input each transaction holds. Transactions that no checkpoint needs any more are not kept.

    Example: evertide journal --storage shop.evertide --from 100 --to 120
    """
    output = Output(is_json=is_json)
    with Reader.open(storage, meta) as reader:
        lines = reader.journal.describe(first, last)
    if is_json:
        for line in lines:
            output.line(line)
        return
    rows = [
        (
            line.time,
            line.generation,
            "" if line.committed else Text("bound", "yellow"),
            "?" if line.rows is None else f"{line.rows:,}",
            bytes_text(line.bytes) if line.bytes else "",
            ", ".join(f"{source} {position_text(line.positions[source], 40)}" for source in line.moved),
            time_text(line.bound_at_s),
        )
        for line in lines
    ]
    numbers = ("time", "generation", "rows")
    output.say(table_of("", ("time", "generation", "", "rows", "staged", "input", "bound"), rows, right=numbers))


@guarded
def checkpoints(*, storage: Storage, meta: Meta = None, is_json: Json = False) -> None:
    """The checkpoints of a storage, the newest first.

    Example: evertide checkpoints --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with Reader.open(storage, meta) as reader:
        found = [(entry, reader.checkpoints.read(entry)) for entry in reader.checkpoints.entries()]
    told = [
        {
            "number": entry.number,
            "time": entry.time,
            "made_at_s": entry.made_at_s,
            "files": len(manifest.files),
            "bytes": sum(file.bytes for file in manifest.files),
            "generation": manifest.generation,
        }
        for entry, manifest in found
    ]
    if is_json:
        output.document(told)
        return
    rows = [
        (one["number"], one["time"], one["files"], bytes_text(one["bytes"]), time_text(one["made_at_s"]))
        for one in told
    ]
    output.say(
        table_of("", ("number", "time", "files", "size", "made"), rows, right=("number", "time", "files", "size"))
    )
