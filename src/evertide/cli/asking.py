"""`explain`, `query`, `subscribe`: questions about a script or a storage, beside whoever runs the pipeline."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text

from evertide.cli.feed import complete_changes
from evertide.cli.options import Json, Master, Meta, Script, Storage
from evertide.cli.output import Bars, Output, guarded, table_of, value_text
from evertide.cli.spark import spark_session
from evertide.errors import InvalidInput
from evertide.pipeline.reader import Reader
from evertide.pipeline.script import read_script
from evertide.shard.changes import DIFF, TIME

if TYPE_CHECKING:
    from evertide.flow.explanation import Explanation

__all__ = ["Explained", "Rows", "explain", "query", "rows_table", "subscribe", "unique_names"]


class Explained(StrEnum):
    """How an explanation is told."""

    text = "text"
    json = "json"
    mermaid = "mermaid"
    dot = "dot"


class Rows(StrEnum):
    """How rows are told."""

    table = "table"
    csv = "csv"
    json = "json"


@guarded
def explain(
    *,
    script: Script,
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
    text, path, _ = read_script(script)
    with Bars(output) as bars, bars.working("Spark"), spark_session(master) as session:
        from evertide.flow import Circuit  # noqa: PLC0415 - pyspark
        from evertide.flow import explain as explained  # noqa: PLC0415 - pyspark
        from evertide.flow.diagrams import dot, mermaid  # noqa: PLC0415 - pyspark

        found = explained(Circuit(session.spark, text, path=path))
    chosen = found if view is None else _only(found, view)
    if output.is_json:
        output.document(chosen.plain())
    elif form is Explained.text:
        output.raw(chosen.text(has_state=False))
    else:
        output.raw(mermaid(chosen) if form is Explained.mermaid else dot(chosen))


def _only(found: Explanation, view: str) -> Explanation:
    views = tuple(each for each in found.views if each.name.lower() == view.lower())
    if not views:
        why = f"the script has no such materialized view; it has {[each.name for each in found.views]}"
        raise InvalidInput(where=f"view {view!r}", why=why)
    kept = {name for each in views for operator in each.operators for name in operator.state}
    return replace(found, views=views, arrangements=tuple(each for each in found.arrangements if each.name in kept))


@guarded
def query(
    *,
    text: Annotated[str, typer.Argument(metavar="SELECT", help="Any query of Spark SQL over tables and views.")],
    storage: Storage,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="T", help="At this time; the last by default.")
    ] = None,
    form: Annotated[Rows, typer.Option("--format", help="How rows are told.")] = Rows.table,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Ask the collections of a storage, all at one time, also while its pipeline runs.

    Example: evertide query "SELECT * FROM revenue WHERE total > 100" --storage shop.evertide
    """
    output = Output(is_json=is_json or form is Rows.json)
    with Reader.open(storage, meta) as reader:
        last = reader.collections.time()
        time = last if as_of is None else as_of
        with Bars(output) as bars, bars.working("Spark"), spark_session(master) as session:
            from evertide.plan.query import query as asked  # noqa: PLC0415 - pyspark

            found = asked(session.spark, text, lambda names: reader.collections.tables_at(names, time))
    rows = unique_names(found)
    if output.is_json:
        output.document({"time": time, "columns": rows.schema.names, "rows": rows.to_pylist()})
    elif form is Rows.csv:
        output.raw(_csv(rows))
    else:
        output.out.print(rows_table("", rows))
        output.err.print(Text(f"{rows.num_rows:,} rows, at time {time}", "dim"))


def unique_names(rows: pa.Table) -> pa.Table:
    """A query may name two columns alike, which no JSON object does."""
    names: list[str] = []
    for name in rows.schema.names:
        count, unique = 1, name
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names.append(unique)
    return rows.rename_columns(names)


def rows_table(title: str, rows: pa.Table) -> Any:
    kinds = {field.name: field.type for field in rows.schema}
    right = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_decimal(kind)]
    right += [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
    cells = [[value_text(value) for value in row.values()] for row in rows.to_pylist()]
    return table_of(title, rows.schema.names, cells, right=right)


def _csv(rows: pa.Table) -> str:
    """NULL is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.schema.names)
    for row in rows.to_pylist():
        writer.writerow("" if value is None else value_text(value) for value in row.values())
    return text.getvalue()


@guarded
def subscribe(
    *,
    name: Annotated[str, typer.Argument(metavar="VIEW", help="A view or a table.")],
    storage: Storage,
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
    with Reader.open(storage, meta) as reader:
        view = reader.collections.view(name)
        shard = reader.collections.members().collection(view.name)
        last = view.time
        if since is not None and since > last:
            raise InvalidInput(where=f"--since {since}", why=f"that time is not there yet; the last is {last}")
        source = shard.subscribe(last) if since is None else shard.listen(since)
        if not follow and since == last:
            return
        try:
            with source:
                for frontier, changes in complete_changes(source, shard.schema):
                    _tell(output, frontier, changes)
                    if not follow and frontier > last:
                        return
        except KeyboardInterrupt:
            return  # that is how it ends


def _tell(output: Output, frontier: int, changes: pa.Table) -> None:
    plain = changes.drop_columns([TIME, DIFF])
    told = zip(changes.column(TIME).to_pylist(), changes.column(DIFF).to_pylist(), plain.to_pylist(), strict=True)
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
