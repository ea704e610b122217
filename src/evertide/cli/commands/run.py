"""`run`, `plan`, `push`, `checkpoint`, `retry`, `promote`, `pause`, `resume`: run a pipeline, or act on a running one.

`push`, `checkpoint` and `retry` open the pipeline as its only process, or call the server that runs it (`--url`).
`pause` and `resume` always call a server. `plan` and `promote` act on the storage, also while a process runs
the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from evertide.cli import options
from evertide.cli.output.live_display import LiveDisplay
from evertide.cli.output.logs import LogFormat, LogOptions
from evertide.cli.output.output import Bars, Output, report_errors
from evertide.cli.running.consent import render_change
from evertide.cli.running.open_pipeline import open_pipeline, open_spark, stop_by_signals
from evertide.cli.running.serve import make_listen_options, open_observers, open_server, serve_pipeline
from evertide.cli.target.target import StorageOptions, open_target
from evertide.errors import InvalidInput, SinkFailed, SourceFailed
from evertide.formats import format_count
from evertide.pipeline.input.pushed_files import PushFormat
from evertide.pipeline.reading.reader import StorageReader, is_there
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.replicas.leadership import promote as promote_replica
from evertide.pipeline.script_reader import read_script
from evertide.problem import ComponentState
from evertide.settings import Settings

if TYPE_CHECKING:
    from evertide.checkpoint.records import CatalogEntry
    from evertide.pipeline.pipeline import Pipeline


@report_errors
def run(
    *,
    script: options.Script,
    storage: options.Storage,
    meta: options.Meta = None,
    master: options.Master = None,
    transactions: Annotated[
        int | None, typer.Option("--transactions", metavar="N", min=1, help="End after N more transactions.")
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when the sources have no more input.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", metavar="SECONDS", help="Interval of checkpoints.")
    ] = Settings().checkpoint_interval_s,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Serve HTTP here; port 0 is any free port.")
    ] = None,
    tokens: options.Tokens = None,
    secret: options.ShapesSecret = "",
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: options.TlsClientCa = None,
    allow_host: options.AllowHost = None,
    allow_origin: options.AllowOrigin = None,
    insecure: options.Insecure = False,
    deletion: options.AllowDeletion = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Follow the leader, and write nothing until promoted.")
    ] = False,
    is_agreed: Annotated[
        bool, typer.Option("--yes", "-y", help="Agree to the changes that the script makes; see `evertide plan`.")
    ] = False,
    assignments: options.Assignments = None,
    log_format: options.LogFormatOption = LogFormat.TEXT,
    log_level: options.LogLevelOption = None,
    traces: options.TracesOption = False,
    is_quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and warnings.")] = False,
    is_json: options.Json = False,
) -> None:
    """Run the pipeline of a script. Creates the storage if it does not exist.

    A new start continues where the last one stopped. If the script no longer declares a stored table, or changes views
    that are computed from many rows, the command shows the changes and asks first. Several processes can run one
    pipeline: one leads, and another takes over if the leader dies. Ctrl-C and SIGTERM end the process after the current
    transaction, with a checkpoint.

    Example: evertide run shop.sql --storage shop.evertide
    """
    output = Output(is_json=is_json, logs=LogOptions(log_format, log_level, storage))
    settings = options.make_settings(assignments, checkpoint_interval_s=checkpoint_every)
    shape_options = options.make_shape_options(assignments, deletion=deletion)
    role = ProcessRole.READ_ONLY if read_only else ProcessRole.REPLICA
    listen_options = None
    if listen is not None:
        tls = (tls_cert, tls_key, tls_client_ca)
        listen_options = make_listen_options(
            tokens=tokens,
            secret=secret,
            tls=tls,
            hosts=allow_host,
            origins=allow_origin,
            insecure=insecure,
            settings=settings,
        )
    with (
        open_server(listen, listen_options) if listen and listen_options else nullcontext() as server,
        open_observers(storage, listens=listen is not None, traces=traces) as observers,
        open_pipeline(
            script,
            storage,
            output,
            meta=meta,
            master=master,
            settings=settings,
            role=role,
            observer=observers.observer,
            is_agreed=is_agreed,
        ) as pipeline,
    ):
        _report_start(output, pipeline, is_quiet=is_quiet)
        display = LiveDisplay(pipeline, output, is_quiet=is_quiet)
        background = nullcontext() if read_only else _enforce_shape_limits(pipeline)
        if server and listen_options:
            background = serve_pipeline(
                server, pipeline, output, listen_options, observers, is_quiet=is_quiet, shape_options=shape_options
            )
        with stop_by_signals(pipeline, output), background, display.draw():
            pipeline.run(transactions=transactions, until_idle=until_idle, on_transaction=display.record)
        stalled = [source for source in pipeline.status().sources if source.state != ComponentState.RUNNING]
        behind = [
            sink for sink in pipeline.status().sinks if sink.state in (ComponentState.STALLED, ComponentState.FAILED)
        ]
        entry = pipeline.checkpoint() if pipeline.leads else None
        _report_end(output, display, entry, is_quiet=is_quiet)
    if until_idle and stalled:
        raise SourceFailed(source=stalled[0].name, where="--until-idle", why=stalled[0].problems[0].why)
    if until_idle and behind and behind[0].problem is not None:
        raise SinkFailed(sink=behind[0].name, where="--until-idle", why=behind[0].problem.why)


@contextmanager
def _enforce_shape_limits(pipeline: Pipeline) -> Iterator[None]:
    """Enforce the limits of shapes that other processes serve, even while none of those processes runs."""
    from evertide.shapes.log.follower import LimitEnforcer  # noqa: PLC0415
    from evertide.shapes.log.registry import Shapes  # noqa: PLC0415

    with LimitEnforcer(Shapes(pipeline.collections)) as enforcer:
        pipeline.watch(enforcer.list_thread_problems)
        pipeline.watch_feeds(enforcer.list_failures)
        yield


def _report_start(output: Output, pipeline: Pipeline, *, is_quiet: bool) -> None:
    definition = pipeline.definition
    if is_quiet:
        return
    if output.is_json:
        views, tables = list(definition.views), list(definition.tables)
        output.write_line(
            {"event": "opened", "time": pipeline.time, "tables": tables, "views": views, "leads": pipeline.leads}
        )
    else:
        count = f"{format_count(len(definition.tables), 'table')}, {format_count(len(definition.views), 'view')}"
        follows = "" if pipeline.leads else "; this process follows another one, which leads"
        output.print_message(Text(f"open at time {pipeline.time}: {count}, storage {pipeline.storage.root}{follows}"))


def _report_end(output: Output, display: LiveDisplay, entry: CatalogEntry | None, *, is_quiet: bool) -> None:
    if is_quiet:
        return
    if output.is_json:
        counts = {"transactions": display.transactions, "rows": display.rows}
        checkpoint = {"number": entry.number, "time": entry.time} if entry is not None else None
        output.write_line({"event": "stopped", "time": display.pipeline.time, **counts, "checkpoint": checkpoint})
    else:
        output.print_message(display.summary())
        for problem in display.list_problems():
            output.print_message(problem)
        ending = (
            f"with checkpoint {entry.number}" if entry is not None else "without a checkpoint: another process leads"
        )
        output.print_message(Text(f"stopped at time {display.pipeline.time}, {ending}"))


@report_errors
def push(
    context: typer.Context,
    *,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table without a connector.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with a header, JSON lines or Parquet; - for stdin.")
    ],
    storage: options.StorageOrUrl = None,
    script: options.ScriptOrUrl = None,
    form: Annotated[
        PushFormat | None, typer.Option("--format", help="Format of the file, if its name does not show it.")
    ] = None,
    deletes: Annotated[bool, typer.Option("--delete", help="Delete the keys or rows in the file.")] = False,
    producer: Annotated[
        str, typer.Option("--producer", metavar="NAME", help="Producer of a push that can be repeated.")
    ] = "",
    sequence: Annotated[
        int | None, typer.Option("--sequence", metavar="N", min=0, help="Number of this push; must increase.")
    ] = None,
    meta: options.Meta = None,
    master: options.Master = None,
    is_json: options.Json = False,
) -> None:
    """Push all rows of a file into a table, in one transaction.

    If the outcome is unknown (exit code 7), repeat the command with the same --producer and --sequence: the rows are
    applied once.

    Example: evertide push orders orders.csv --storage shop.evertide --script shop.sql
    """
    output = Output(is_json=is_json)
    if bool(producer) != (sequence is not None):
        raise InvalidInput(where="--producer, --sequence", why="set both options, or neither")
    with open_target(context, output, StorageOptions(storage, meta, script, master)) as target:
        rows, time = target.push(table, file, form, is_delete=deletes, producer=producer, sequence=sequence)
    text = f"{format_count(rows, 'row')} {'deleted from' if deletes else 'pushed into'} {table}, at time {time}"
    output.report({"table": table, "rows": rows, "time": time}, text)


@report_errors
def checkpoint(
    context: typer.Context,
    *,
    storage: options.StorageOrUrl = None,
    script: options.ScriptOrUrl = None,
    meta: options.Meta = None,
    master: options.Master = None,
    is_json: options.Json = False,
) -> None:
    """Make a checkpoint, if anything changed since the last one. A running pipeline makes checkpoints by itself.

    Example: evertide checkpoint --storage shop.evertide --script shop.sql
    """
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(storage, meta, script, master)) as target:
        new = target.checkpoint()
    output.report(new, f"checkpoint {new.number} at time {new.time}")


@report_errors
def retry(
    context: typer.Context,
    *,
    views: Annotated[list[str], typer.Argument(metavar="VIEW...", help="Views that have failed.")],
    storage: options.StorageOrUrl = None,
    script: options.ScriptOrUrl = None,
    meta: options.Meta = None,
    master: options.Master = None,
    is_json: options.Json = False,
) -> None:
    """Recompute failed views now, after the cause is gone. Evertide does so itself when their tables change.

    If a view fails again, the command says why and ends with exit code 12.

    Example: evertide --url http://127.0.0.1:8080 retry revenue
    """
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(storage, meta, script, master)) as target:
        target.retry(views)
    output.report({"views": views}, f"computed: {', '.join(views)}")


@report_errors
def pause(context: typer.Context, *, is_json: options.Json = False) -> None:
    """Pause a running pipeline, until `evertide resume`.

    The transaction under way is completed first.

    Example: evertide --url http://127.0.0.1:8080 pause
    """
    _set_paused(context, "pause", is_json=is_json)


@report_errors
def resume(context: typer.Context, *, is_json: options.Json = False) -> None:
    """Resume a paused pipeline.

    Example: evertide --url http://127.0.0.1:8080 resume
    """
    _set_paused(context, "resume", is_json=is_json)


def _set_paused(context: typer.Context, what: str, *, is_json: bool) -> None:
    output = Output(is_json=is_json)
    with open_target(context, output, StorageOptions(), needs_storage=False) as target:
        state = target.pause() if what == "pause" else target.resume()
    output.report({"state": state}, state)


@report_errors
def plan(
    *,
    script: options.Script,
    storage: options.Storage,
    meta: options.Meta = None,
    master: options.Master = None,
    is_json: options.Json = False,
) -> None:
    """Show what a script would change in a storage. Nothing is changed, and the pipeline can run meanwhile.

    Example: evertide plan shop.sql --storage shop.evertide
    """
    output = Output(is_json=is_json)
    text, path, _ = read_script(script)
    with ExitStack() as stack, Bars(output) as bars:
        reader = stack.enter_context(StorageReader.open(storage, meta)) if is_there(storage) else None
        with bars.show_work("Spark"):
            session = stack.enter_context(open_spark(master))
        from evertide.pipeline.script_change import describe_change, read_script_change  # noqa: PLC0415 - pyspark
        from evertide.pipeline.spark_engine import SparkEngine  # noqa: PLC0415 - pyspark

        engine = SparkEngine(session, text, path)
        if reader is None:
            change = describe_change(None, engine, lambda _: 0)
        else:
            change = read_script_change(reader.storage, engine, reader.runtime, reader.settings)
    reasons = change.find_reasons_to_ask(Settings().confirm_rows)
    if is_json:
        output.write_document({"is_new": change.is_new, "changes": change.changes, "reasons_to_ask": reasons})
    else:
        output.print_message(render_change(change, str(script)))


@report_errors
def promote(
    *,
    storage: options.Storage,
    writer: Annotated[
        str,
        typer.Argument(
            metavar="[WRITER]",
            help="Writer id of the replica, from `evertide status`; needed if several are read-only.",
        ),
    ] = "",
    meta: options.Meta = None,
    is_json: options.Json = False,
) -> None:
    """Make a read-only replica the leader. The other replicas are fenced, and end.

    Example: evertide promote --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with StorageReader.open(storage, meta) as reader:
        chosen = promote_replica(reader.storage.meta, writer, runtime=reader.runtime, settings=reader.settings)
    output.report(
        {"writer": chosen.writer, "host": chosen.host, "pid": chosen.pid},
        f"process {chosen.pid} on {chosen.host} (writer {chosen.writer}) is the leader now",
    )
