"""`shapes`: serves the shapes of a storage in a separate process, without Spark and beside the pipeline's process."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from evertide.cli import options
from evertide.cli.output.logs import LogFormat, LogOptions
from evertide.cli.output.output import Output, report_errors
from evertide.cli.running.serve import make_listen_options, open_observers, open_server
from evertide.errors import InvalidInput
from evertide.pipeline.reading.reader import StorageReader

if TYPE_CHECKING:
    from evertide.server.server import Server

LISTEN = "127.0.0.1:3000"


@report_errors
def shapes(
    *,
    storage: options.Storage,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Serve HTTP at this address; port 0 is any free port.")
    ] = LISTEN,
    tokens: options.Tokens = None,
    secret: options.ShapesSecret = "",
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: options.TlsClientCa = None,
    allow_host: options.AllowHost = None,
    allow_origin: options.AllowOrigin = None,
    insecure: options.Insecure = False,
    deletion: options.AllowDeletion = False,
    shapes_max: Annotated[
        int,
        typer.Option(
            "--shapes-max", metavar="N", min=1, help="Keep at most N shapes; the least recently used end first."
        ),
    ] = 10_000,
    meta: options.Meta = None,
    assignments: options.ShapeAssignments = None,
    log_format: options.LogFormatOption = LogFormat.TEXT,
    log_level: options.LogLevelOption = None,
    traces: options.TracesOption = False,
    is_json: options.Json = False,
) -> None:
    """Serve all tables and views of a storage as shapes.

    Electric's clients read them. This process runs beside the one that runs the pipeline. Several such processes can
    run. Ctrl-C and SIGTERM end the process.

    Example: evertide shapes --storage shop.evertide --listen 127.0.0.1:3000
    """
    from evertide.server.server import tune_garbage_collection  # noqa: PLC0415 - slow to import
    from evertide.server.shapes_app import make_shapes_app  # noqa: PLC0415
    from evertide.shapes.service import ShapeService  # noqa: PLC0415

    output = Output(is_json=is_json, logs=LogOptions(log_format, log_level, storage))
    for text in assignments or ():
        if not text.strip().startswith("shapes."):
            raise InvalidInput(where=f"--set {text}", why="this command has only settings that begin with 'shapes.'")
    shape_options = options.make_shape_options(assignments, deletion=deletion, shapes_max=shapes_max)
    tls = (tls_cert, tls_key, tls_client_ca)
    listen_options = make_listen_options(
        tokens=tokens, secret=secret, tls=tls, hosts=allow_host, origins=allow_origin, insecure=insecure
    )
    with (
        open_server(listen, listen_options) as server,
        open_observers(storage, listens=True, traces=traces) as observers,
        StorageReader.open(storage, meta, observer=observers.observer) as reader,
        ShapeService(reader.collections, shape_options) as service,
    ):
        observers.watch_reader(reader, service)
        metrics, observer = observers.metrics, observers.observer
        tune_garbage_collection()
        server.start(make_shapes_app(reader, service, listen_options.access, metrics=metrics, observer=observer))
        try:
            _report_start(output, server, reader)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
        finally:
            service.drain()
            server.stop()


def _report_start(output: Output, server: Server, reader: StorageReader) -> None:
    if output.is_json:
        output.write_line({"event": "listening", "time": reader.collections.find_time(), "address": server.address})
    else:
        output.print_message(Text(f"shapes of {reader.storage.root} at {server.address}/v1/shape"))
