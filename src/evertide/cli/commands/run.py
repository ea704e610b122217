"""`run` runs a pipeline; `push` and `checkpoint` open it alone or call a server; `pause`, `resume` call one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from evertide.cli.options import (
    AllowDeletion,
    AllowHost,
    Insecure,
    Json,
    LogAs,
    LogFrom,
    Master,
    Meta,
    Script,
    ScriptOrUrl,
    ShapesSecret,
    Storage,
    StorageOrUrl,
    TlsCert,
    TlsClientCa,
    TlsKey,
    Tokens,
    Traced,
)
from evertide.cli.output.live import Watch
from evertide.cli.output.logs import LogFormat, LogOptions
from evertide.cli.output.output import Output, guarded
from evertide.cli.running.listen_options import listen_options_of
from evertide.cli.running.observers import observing
from evertide.cli.running.open_pipeline import opened, stopped_by_signals
from evertide.cli.running.serve import address_of, served
from evertide.cli.settings import Assignments, settings_of
from evertide.cli.target.target import StorageOptions, open_target
from evertide.errors import InvalidInput, SinkFailed, SourceFailed
from evertide.pipeline.input.pushed_files import Format
from evertide.pipeline.replicas.ownership import Role
from evertide.settings import Settings

if TYPE_CHECKING:
    from evertide.checkpoint.records import CatalogEntry
    from evertide.pipeline.pipeline import Pipeline

__all__ = ["checkpoint", "pause", "push", "resume", "run"]


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
    tokens: Tokens = None,
    secret: ShapesSecret = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    allow_host: AllowHost = None,
    insecure: Insecure = False,
    deletion: AllowDeletion = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Follow those that run it, and write nothing until promoted.")
    ] = False,
    assignments: Assignments = None,
    log_format: LogAs = LogFormat.TEXT,
    log_level: LogFrom = None,
    traces: Traced = False,
    is_quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what is wrong.")] = False,
    is_json: Json = False,
) -> None:
    """Run the pipeline of a script at a storage, which is made if it is not there.

    It goes on where it was, whatever ended it. Several may run it: one leads, and another takes over if that one dies.
    Ctrl-C and SIGTERM end it after the transaction under way, with a checkpoint.

    Example: evertide run shop.sql --storage shop.evertide
    """
    output = Output(is_json=is_json, logs=LogOptions(log_format, log_level, storage))
    settings = settings_of(assignments, checkpoint_interval_s=checkpoint_every)
    role = Role.READ_ONLY if read_only else Role.REPLICA
    listening = None
    if listen is not None:
        tls = (tls_cert, tls_key, tls_client_ca)
        listening = listen_options_of(
            tokens=tokens, secret=secret, tls=tls, hosts=allow_host, insecure=insecure, settings=settings
        )
    with (
        address_of(listen, listening) if listen and listening else nullcontext() as server,
        observing(storage, listens=listen is not None, traces=traces) as watched,
        opened(
            script,
            storage,
            output,
            meta=meta,
            master=master,
            settings=settings,
            role=role,
            observer=watched.observer,
        ) as pipeline,
    ):
        _opened(output, pipeline, is_quiet=is_quiet)
        watch = Watch(pipeline, output, is_quiet=is_quiet)
        kept = nullcontext() if read_only else _kept(pipeline)
        if server and listening:
            kept = served(server, pipeline, output, listening, watched, is_quiet=is_quiet, deletion=deletion)
        with stopped_by_signals(pipeline, output), kept, watch.drawn():
            pipeline.run(transactions=transactions, until_idle=until_idle, on_transaction=watch.told)
        stalled = [source for source in pipeline.status().sources if source.state != "running"]
        behind = [sink for sink in pipeline.status().sinks if sink.state in ("stalled", "failed")]
        entry = pipeline.checkpoint() if pipeline.leads else None
        _ended(output, watch, entry, is_quiet=is_quiet)
    if until_idle and stalled:
        raise SourceFailed(source=stalled[0].name, where="--until-idle", why=stalled[0].problems[0].why)
    if until_idle and behind and behind[0].problem is not None:
        raise SinkFailed(sink=behind[0].name, where="--until-idle", why=behind[0].problem.why)


@contextmanager
def _kept(pipeline: Pipeline) -> Iterator[None]:
    """Enforce the limits of shapes that other processes serve, even while none of those processes runs."""
    from evertide.shapes.log.follower import LimitEnforcer  # noqa: PLC0415
    from evertide.shapes.log.registry import Shapes  # noqa: PLC0415

    with LimitEnforcer(Shapes(pipeline.collections)) as keeper:
        pipeline.watch(keeper.troubles)
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


def _ended(output: Output, watch: Watch, entry: CatalogEntry | None, *, is_quiet: bool) -> None:
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
    context: typer.Context,
    *,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table without a connector.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with a header, JSON lines or Parquet; - for stdin.")
    ],
    storage: StorageOrUrl = None,
    script: ScriptOrUrl = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="What the file holds, if its name does not say it.")
    ] = None,
    deletes: Annotated[bool, typer.Option("--delete", help="The file holds keys, or rows, to delete.")] = False,
    producer: Annotated[
        str, typer.Option("--producer", metavar="NAME", help="Who pushes, if it may be repeated; with --sequence.")
    ] = "",
    sequence: Annotated[
        int | None, typer.Option("--sequence", metavar="N", min=0, help="The number of this push, which goes up.")
    ] = None,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Push the rows of a file into a table, as one transaction; all of them, or none.

    If the outcome is unknown (exit code 7), run it again with the same --producer and --sequence: it is taken once.

    Example: evertide push orders orders.csv --storage shop.evertide --script shop.sql
    """
    output = Output(is_json=is_json)
    if bool(producer) != (sequence is not None):
        raise InvalidInput(where="--producer, --sequence", why="they go together: give both, or neither")
    with open_target(context, output, StorageOptions(storage, meta, script, master)) as place:
        rows, time = place.push(table, file, form, is_delete=deletes, producer=producer, sequence=sequence)
    if is_json:
        output.document({"table": table, "rows": rows, "time": time})
    else:
        output.say(Text(f"{rows:,} rows {'deleted from' if deletes else 'pushed into'} {table}, at time {time}"))


@guarded
def checkpoint(
    context: typer.Context,
    *,
    storage: StorageOrUrl = None,
    script: ScriptOrUrl = None,
    meta: Meta = None,
    master: Master = None,
    is_json: Json = False,
) -> None:
    """Make a checkpoint, if anything happened since the last one. A running pipeline does this by itself.

    Example: evertide checkpoint --storage shop.evertide --script shop.sql
    """
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(storage, meta, script, master)) as place:
        made = place.checkpoint()
    if is_json:
        output.document(made)
    else:
        output.say(Text(f"checkpoint {made.number} at time {made.time}"))


@guarded
def pause(context: typer.Context, *, is_json: Json = False) -> None:
    """Let a running pipeline take no new transaction until it is resumed. One that is under way is completed.

    Example: evertide --url http://127.0.0.1:8080 pause
    """
    _going(context, "pause", is_json=is_json)


@guarded
def resume(context: typer.Context, *, is_json: Json = False) -> None:
    """Let a paused pipeline go on.

    Example: evertide --url http://127.0.0.1:8080 resume
    """
    _going(context, "resume", is_json=is_json)


def _going(context: typer.Context, what: str, *, is_json: bool) -> None:
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(), needs_storage=False) as place:
        state = place.pause() if what == "pause" else place.resume()
    if is_json:
        output.document({"state": state})
    else:
        output.say(state)
