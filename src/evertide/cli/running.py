"""`run`, `push`, `checkpoint`: commands that open the pipeline themselves; the last two want to be alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from evertide.cli.live import Watch
from evertide.cli.opened import opened, stopped_by_signals
from evertide.cli.options import Json, Master, Meta, Script, ScriptOption, ShapesSecret, Storage
from evertide.cli.output import Output, guarded
from evertide.cli.rows import Format, rows_of_file
from evertide.cli.setting import Assignments, settings_of
from evertide.errors import SinkFailed, SourceFailed
from evertide.pipeline.ownership import Role
from evertide.settings import Settings

if TYPE_CHECKING:
    from evertide.checkpoint.records import Entry
    from evertide.pipeline.pipeline import Pipeline
    from evertide.server.serving import Server

__all__ = ["checkpoint", "push", "run"]


@guarded
def run(
    *,
    script: Script,
    storage: Storage,
    meta: Meta = None,
    master: Master = None,
    transactions: Annotated[
        int | None, typer.Option("--transactions", metavar="N", min=1, help="End after so many more.")
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when sources have nothing more.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", metavar="SECONDS", help="If anything changed.")
    ] = Settings().checkpoint_interval_s,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Take requests by HTTP; port 0 is any free one.")
    ] = None,
    secret: ShapesSecret = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Follow those that run it, and write nothing until promoted.")
    ] = False,
    assignments: Assignments = None,
    is_quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what is wrong.")] = False,
    is_json: Json = False,
) -> None:
    """Run the pipeline of a script at a storage, which is made if it is not there.

    It goes on where it was, whatever ended it. Several may run it: one leads, and another takes over if that one dies.
    Ctrl-C and SIGTERM end it after the transaction under way, with a checkpoint.

    Example: evertide run shop.sql --storage shop.evertide
    """
    output = Output(is_json=is_json)
    settings = settings_of(assignments, checkpoint_interval_s=checkpoint_every)
    role = Role.READ_ONLY if read_only else Role.REPLICA
    with (
        _address(listen) as server,
        opened(script, storage, output, meta=meta, master=master, settings=settings, role=role) as pipeline,
    ):
        _opened(output, pipeline, is_quiet=is_quiet)
        watch = Watch(pipeline, output, is_quiet=is_quiet)
        kept = nullcontext() if read_only else _kept(pipeline)
        served = _served(server, pipeline, output, secret, is_quiet=is_quiet) if server else kept
        with stopped_by_signals(pipeline, output), served, watch.drawn():
            pipeline.run(transactions=transactions, until_idle=until_idle, told=watch.told)
        stalled = [source for source in pipeline.status().sources if source.state != "running"]
        behind = [sink for sink in pipeline.status().sinks if sink.state in ("stalled", "failed")]
        entry = pipeline.checkpoint() if pipeline.leads else None
        _ended(output, watch, entry, is_quiet=is_quiet)
    if until_idle and stalled:
        raise SourceFailed(source=stalled[0].name, where="--until-idle", why=stalled[0].problems[0].why)
    if until_idle and behind and behind[0].problem is not None:
        raise SinkFailed(sink=behind[0].name, where="--until-idle", why=behind[0].problem.why)


@contextmanager
def _address(listen: str | None) -> Iterator[Server | None]:
    """Taken before Spark is started, so that what is wrong with it is said at once."""
    if listen is None:
        yield None
        return
    from evertide.server.serving import Server  # noqa: PLC0415 - only who listens waits for it

    with Server(listen) as server:
        yield server


@contextmanager
def _served(server: Server, pipeline: Pipeline, output: Output, secret: str, *, is_quiet: bool) -> Iterator[None]:
    """In the end, requests under way are answered; the pipeline is still open then."""
    from evertide.server.app import make_app  # noqa: PLC0415 - pyspark
    from evertide.shapes.options import ShapeOptions  # noqa: PLC0415
    from evertide.shapes.service import ShapeService  # noqa: PLC0415

    with ShapeService(pipeline.collections, ShapeOptions(secret=secret)) as shapes:
        server.start(make_app(pipeline, shapes=shapes))
        try:
            if output.is_json and not is_quiet:
                output.line({"event": "listening", "time": pipeline.time, "address": server.address})
            elif not is_quiet:
                output.say(Text(f"listening at {server.address}"))
            yield
        finally:
            shapes.drain()
            server.stop()


@contextmanager
def _kept(pipeline: Pipeline) -> Iterator[None]:
    """Shapes that other processes serve stay in bounds, also while none of these runs."""
    from evertide.shapes.follower import Keeper  # noqa: PLC0415
    from evertide.shapes.registry import Shapes  # noqa: PLC0415

    with Keeper(Shapes(pipeline.collections)):
        yield


def _opened(output: Output, pipeline: Pipeline, *, is_quiet: bool) -> None:
    definition = pipeline.definition
    if is_quiet:
        return
    if output.is_json:
        views, tables = list(definition.views), list(definition.tables)
        output.line(
            {"event": "opened", "time": pipeline.time, "tables": tables, "views": views, "leads": pipeline.leads}
        )
    else:
        count = f"{len(definition.tables)} tables, {len(definition.views)} views"
        follows = "" if pipeline.leads else "; another process leads, and this one follows"
        output.say(Text(f"open at time {pipeline.time}: {count}, storage {pipeline.storage.root}{follows}"))


def _ended(output: Output, watch: Watch, entry: Entry | None, *, is_quiet: bool) -> None:
    if is_quiet:
        return
    if output.is_json:
        counts = {"transactions": watch.transactions, "rows": watch.rows}
        checkpoint = {"number": entry.number, "time": entry.time} if entry is not None else None
        output.line({"event": "stopped", "time": watch.pipeline.time, **counts, "checkpoint": checkpoint})
    else:
        output.say(watch.line())
        for problem in watch.problems():
            output.say(problem)
        made = f"with checkpoint {entry.number} at time {entry.time}" if entry is not None else "as another one leads"
        output.say(Text(f"stopped, {made}"))


@guarded
def push(
    *,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table without a connector.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with a header, JSON lines or Parquet; - for stdin.")
    ],
    storage: Storage,
    script: ScriptOption,
    form: Annotated[
        Format | None, typer.Option("--format", help="What the file holds, if its name does not say it.")
    ] = None,
    deletes: Annotated[bool, typer.Option("--delete", help="The file holds keys, or rows, to delete.")] = False,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Push the rows of a file into a table, as one transaction; all of them, or none.

    Example: evertide push orders orders.csv --storage shop.evertide --script shop.sql
    """
    output = Output(is_json=is_json)
    with opened(script, storage, output, meta=meta, master=master) as pipeline:
        rows = 0
        try:
            for batch in rows_of_file(pipeline.engine.tables, table, file, form, is_delete=deletes):
                pipeline.push(table, () if deletes else batch, deletes=batch if deletes else ())
                rows += batch.num_rows
        except BaseException:
            pipeline.abort()
            raise
        time = pipeline.commit()
    if is_json:
        output.document({"table": table, "rows": rows, "time": time})
    else:
        output.say(Text(f"{rows:,} rows {'deleted from' if deletes else 'pushed into'} {table}, at time {time}"))


@guarded
def checkpoint(
    *,
    storage: Storage,
    script: ScriptOption,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Make a checkpoint, if anything happened since the last one. A running pipeline does this by itself.

    Example: evertide checkpoint --storage shop.evertide --script shop.sql
    """
    output = Output(is_json=is_json)
    with opened(script, storage, output, meta=meta, master=master, must_exist=True) as pipeline:
        entry: Any = pipeline.checkpoint()
    if is_json:
        output.document({"number": entry.number, "time": entry.time, "made_at_s": entry.made_at_s})
    else:
        output.say(Text(f"checkpoint {entry.number} at time {entry.time}"))
