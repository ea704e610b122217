"""`status`, `journal`, `checkpoints`: read a storage, without Spark, also while another process runs it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from evertide.cli.options import Json, Meta, StorageOrUrl
from evertide.cli.output.output import Output, report_errors
from evertide.cli.target.target import StorageOptions, open_target
from evertide.formats import format_bytes, format_position, format_time
from evertide.json_values import to_json_value
from evertide.pipeline.status.report import describe_status
from evertide.pipeline.status.status import Status
from evertide.tables import TextTable


@report_errors
def status(context: typer.Context, *, storage: StorageOrUrl = None, meta: Meta = None, is_json: Json = False) -> None:
    """Show the state of a pipeline, and its problems.

    Example: evertide status --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(storage, meta)) as target:
        found = target.status()
    if is_json:
        output.write_document({**to_json_value(found), "checkpoints": _list_checkpoints(found)})
    else:
        for part in describe_status(found):
            output.print_message(part)


def _list_checkpoints(found: Status) -> list[dict[str, int]]:
    return [{"number": number, "time": time} for number, time in found.checkpoints]


@report_errors
def journal(
    context: typer.Context,
    *,
    storage: StorageOrUrl = None,
    first: Annotated[int, typer.Option("--from", metavar="T", help="First transaction.")] = 0,
    last: Annotated[int | None, typer.Option("--to", metavar="T", help="Last transaction.")] = None,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Show the input of each transaction.

    The list begins at the oldest checkpoint: Evertide deletes older records.

    Example: evertide journal --storage shop.evertide --from 100 --to 120
    """
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(storage, meta)) as target:
        lines = target.journal(first, last)
    if is_json:
        for line in lines:
            output.write_line(line)
        return
    rows = [
        (
            line.time,
            line.generation,
            "" if line.committed else Text("bound", "yellow"),
            "?" if line.rows is None else f"{line.rows:,}",
            format_bytes(line.bytes) if line.bytes else "",
            ", ".join(f"{source} {format_position(line.positions[source], 40)}" for source in line.moved),
            format_time(line.bound_at_s),
        )
        for line in lines
    ]
    numbers = ("time", "generation", "rows")
    output.print_message(
        TextTable("", ("time", "generation", "", "rows", "staged", "input", "bound"), rows, right=numbers)
    )


@report_errors
def checkpoints(
    context: typer.Context, *, storage: StorageOrUrl = None, meta: Meta = None, is_json: Json = False
) -> None:
    """List the checkpoints of a storage, the newest first.

    Example: evertide checkpoints --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(storage, meta)) as target:
        found = target.checkpoints()
    if is_json:
        output.write_document(found)
        return
    rows = [(one.number, one.time, one.files, format_bytes(one.bytes), format_time(one.made_at_s)) for one in found]
    columns = ("number", "time", "files", "size", "made")
    output.print_message(TextTable("", columns, rows, right=columns[:-1]))
    for one in found:
        if one.problem:
            output.print_message(Text(f"checkpoint {one.number} cannot be used: {one.problem}", "red"))
