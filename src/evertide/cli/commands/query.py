"""`explain`, `query`, `subscribe`: read a script or a storage, also while another process runs the pipeline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.text import Text

from evertide.cli.options import Json, Master, Meta, StorageOrUrl
from evertide.cli.output.output import Output, report_errors
from evertide.cli.target.target import StorageOptions, open_target
from evertide.formats import format_count, format_value
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.pipeline.reading.readable_rows import make_row_table
from evertide.pipeline.reading.stale import ignore_stale_views
from evertide.rows.changes import DIFF, TIME
from evertide.rows.frames import make_names_unique
from evertide.rows.python_rows import to_python_rows
from evertide.server.endpoints.formats import write_csv
from evertide.sinks.json_rows import to_json_rows


class ExplainFormat(StrEnum):
    text = "text"
    json = "json"
    mermaid = "mermaid"
    dot = "dot"


class RowFormat(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


@report_errors
def explain(
    context: typer.Context,
    *,
    script: Annotated[
        Path | None, typer.Argument(metavar="[SCRIPT]", help="SQL file that declares tables and views; not with --url.")
    ] = None,
    view: Annotated[str | None, typer.Option("--view", metavar="VIEW", help="Only this view.")] = None,
    form: Annotated[
        ExplainFormat, typer.Option("--format", help="Mermaid and DOT are texts that other tools draw.")
    ] = ExplainFormat.text,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Show how each operator of each view is maintained.

    Also shows what a small transaction costs.

    Example: evertide explain shop.sql --view revenue
    """
    output = Output(is_json=is_json or form is ExplainFormat.json)
    with open_target(context, output, StorageOptions(script=script, master=master), needs_storage=False) as target:
        found = target.explain(view, "json" if output.is_json else form.value)
    if output.is_json:
        output.write_document(found)
    else:
        output.write_text(found)


@report_errors
def query(
    context: typer.Context,
    *,
    text: Annotated[str, typer.Argument(metavar="SELECT", help="Any query of Spark SQL over tables and views.")],
    storage: StorageOrUrl = None,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="T", help="Read at this time; by default the last.")
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option("--engine", help="By default DuckDB for small collections, otherwise Spark.")
    ] = EngineChoice.auto,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Print at most N rows.")] = None,
    form: Annotated[RowFormat, typer.Option("--format", help="Format of the rows.")] = RowFormat.table,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Query the collections of a storage, all at one time. The pipeline can run meanwhile.

    Example: evertide query "SELECT * FROM revenue WHERE total > 100" --storage shop.evertide
    """
    output = Output(is_json=is_json or form is RowFormat.json)
    options = StorageOptions(storage, meta, master=master)
    with ignore_stale_views(), open_target(context, output, options) as target:  # the answer has the sentences
        answer = target.query(Question(text, as_of, engine, limit))
    rows = make_names_unique(answer.rows)
    if output.is_json:
        facts = {
            "time": answer.time,
            "engine": answer.engine,
            "is_truncated": answer.is_truncated,
            "stale": answer.stale,
        }
        output.write_document({**facts, "columns": rows.schema.names, "rows": list(to_json_rows(rows))})
    elif form is RowFormat.csv:
        output.write_text(write_csv(rows))
    else:
        output.out.print(make_row_table("", rows).to_rich())
    for sentence in answer.stale:
        output.warn(sentence)
    if not output.is_json:
        size = format_count(rows.num_rows, "row")
        more = ", and there are more" if answer.is_truncated else ""
        output.err.print(Text(f"{size}{more}, at time {answer.time}, by {answer.engine}", "dim"))


@report_errors
def subscribe(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="VIEW", help="A view or a table.")],
    storage: StorageOrUrl = None,
    since: Annotated[
        int | None,
        typer.Option("--since", metavar="T", help="Print only changes after this time; by default all rows first."),
    ] = None,
    follow: Annotated[bool, typer.Option(help="Continue with new transactions, until Ctrl-C.")] = True,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Print the changes of a collection by transaction. The pipeline can run meanwhile.

    With --json, each change is a line with `time`, `diff` and `row`; a line `{"complete": T}` follows when all changes
    up to T were printed. If the view fails, or is computed again, a line on standard error says so.

    Example: evertide subscribe revenue --storage shop.evertide --since 100
    """
    output = Output(is_json=is_json)
    try:
        with open_target(context, output, StorageOptions(storage, meta)) as target:
            for frontier, changes in target.subscribe(name, since, output.warn, follow=follow):
                _print_changes(output, frontier, changes)
    except KeyboardInterrupt:
        return  # the normal end


def _print_changes(output: Output, frontier: int, changes: pa.Table) -> None:
    rows = to_python_rows(changes.drop_columns([TIME, DIFF]))
    changes_by_row = zip(changes.column(TIME).to_pylist(), changes.column(DIFF).to_pylist(), rows, strict=True)
    before = None
    for time, diff, row in changes_by_row:
        if output.is_json:
            output.write_line({"time": time, "diff": diff, "row": row})
            continue
        if time != before:
            output.print_message(Text(f"time {time}", "bold"))
            before = time
        cells = "  ".join(f"{name}={format_value(value)}" for name, value in row.items())
        output.print_message(Text(f"  {diff:+d}  {cells}", "green" if diff > 0 else "red"))
    if output.is_json:
        output.write_line({"complete": frontier - 1})
