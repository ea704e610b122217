"""`explain`, `query`, `subscribe`: read a script or a storage, also while another process runs the pipeline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text

from evertide.cli.options import Json, Master, Meta, StorageOrUrl
from evertide.cli.output.output import Output, guarded, table_of, value_text
from evertide.cli.target.target import StorageOptions, open_target
from evertide.json_values import python_rows
from evertide.pipeline.reading.query import Chosen, Question
from evertide.rows.changes import DIFF, TIME
from evertide.server.endpoints.formats import csv_text, unique_names
from evertide.sinks.json_rows import json_rows

__all__ = ["Explained", "Rows", "explain", "query", "rows_table", "subscribe"]


class Explained(StrEnum):
    text = "text"
    json = "json"
    mermaid = "mermaid"
    dot = "dot"


class Rows(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


@guarded
def explain(
    context: typer.Context,
    *,
    script: Annotated[
        Path | None,
        typer.Argument(metavar="[SCRIPT]", help="SQL file that declares tables and views; nothing with --url."),
    ] = None,
    view: Annotated[str | None, typer.Option("--view", metavar="VIEW", help="Only this one.")] = None,
    form: Annotated[
        Explained, typer.Option("--format", help="Mermaid and DOT are for others to draw.")
    ] = Explained.text,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """How each operator of each view is maintained, and what a small transaction costs it.

    Example: evertide explain shop.sql --view revenue
    """
    output = Output(is_json=is_json or form is Explained.json)
    with open_target(context, output, StorageOptions(script=script, master=master), needs_storage=False) as place:
        found = place.explain(view, "json" if output.is_json else form.value)
    if output.is_json:
        output.document(found)
    else:
        output.raw(found)


@guarded
def query(
    context: typer.Context,
    *,
    text: Annotated[str, typer.Argument(metavar="SELECT", help="Any query of Spark SQL over tables and views.")],
    storage: StorageOrUrl = None,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="T", help="At this time; the last by default.")
    ] = None,
    engine: Annotated[
        Chosen, typer.Option("--engine", help="Who answers; by default DuckDB if it is small, else Spark.")
    ] = Chosen.auto,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many rows.")] = None,
    form: Annotated[Rows, typer.Option("--format", help="How rows are told.")] = Rows.table,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Ask the collections of a storage, all at one time, also while its pipeline runs.

    Example: evertide query "SELECT * FROM revenue WHERE total > 100" --storage shop.evertide
    """
    output = Output(is_json=is_json or form is Rows.json)
    with open_target(context, output, StorageOptions(storage, meta, master=master)) as place:
        answer = place.query(Question(text, as_of, engine, limit))
    rows = unique_names(answer.rows)
    if output.is_json:
        told = {"time": answer.time, "engine": answer.engine, "is_truncated": answer.is_truncated}
        output.document({**told, "columns": rows.schema.names, "rows": list(json_rows(rows))})
    elif form is Rows.csv:
        output.raw(csv_text(rows))
    else:
        output.out.print(rows_table("", rows))
    if not output.is_json:
        more = ", and there are more" if answer.is_truncated else ""
        output.err.print(Text(f"{rows.num_rows:,} rows{more}, at time {answer.time}, by {answer.engine}", "dim"))


def rows_table(title: str, rows: pa.Table) -> Any:
    kinds = {field.name: field.type for field in rows.schema}
    right = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_decimal(kind)]
    right += [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
    cells = [[value_text(value) for value in row.values()] for row in python_rows(rows)]
    return table_of(title, rows.schema.names, cells, right=right)


@guarded
def subscribe(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="VIEW", help="A view or a table.")],
    storage: StorageOrUrl = None,
    since: Annotated[
        int | None, typer.Option("--since", metavar="T", help="Only what changed after this time; else all rows first.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Go on as transactions come, until Ctrl-C.")] = True,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """What changes in a collection, transaction by transaction, also while its pipeline runs.

    With --json, each change is a line with `time`, `diff` and `row`; a line `{"complete": T}` follows when all changes
    up to T were told.

    Example: evertide subscribe revenue --storage shop.evertide --since 100
    """
    output = Output(is_json=is_json)
    try:
        with open_target(context, output, StorageOptions(storage, meta)) as place:
            for frontier, changes in place.subscribe(name, since, follow=follow):
                _tell(output, frontier, changes)
    except KeyboardInterrupt:
        return  # the normal end


def _tell(output: Output, frontier: int, changes: pa.Table) -> None:
    rows = python_rows(changes.drop_columns([TIME, DIFF]))
    told = zip(changes.column(TIME).to_pylist(), changes.column(DIFF).to_pylist(), rows, strict=True)
    before = None
    for time, diff, row in told:
        if output.is_json:
            output.line({"time": time, "diff": diff, "row": row})
            continue
        if time != before:
            output.say(Text(f"time {time}", "bold"))
            before = time
        cells = "  ".join(f"{name}={value_text(value)}" for name, value in row.items())
        output.say(Text(f"  {diff:+d}  {cells}", "green" if diff > 0 else "red"))
    if output.is_json:
        output.line({"complete": frontier - 1})
