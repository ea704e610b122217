"""`shapes`: serves the shapes of a storage in a process of its own. No Spark, nothing is taken over."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from evertide.cli.options import Json, Meta, ShapesSecret, Storage
from evertide.cli.output import Output, guarded
from evertide.pipeline.reader import Reader

if TYPE_CHECKING:
    from evertide.server.serving import Server

__all__ = ["shapes"]

LISTEN = "127.0.0.1:3000"


@guarded
def shapes(
    *,
    storage: Storage,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to take requests; port 0 is any free one.")
    ] = LISTEN,
    secret: ShapesSecret = "",
    deletion: Annotated[bool, typer.Option("--allow-deletion", help="Let clients end shapes.")] = False,
    shapes_max: Annotated[
        int, typer.Option("--shapes-max", metavar="N", min=1, help="Beyond it, shapes that nobody asks for end.")
    ] = 10_000,
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Serve every table and view of a storage to Electric's clients, beside the process that runs its pipeline.

    There may be several of them. Ctrl-C and SIGTERM end it.

    Example: evertide shapes --storage shop.evertide --listen 127.0.0.1:3000
    """
    from evertide.server.serving import Server  # noqa: PLC0415 - only who listens waits for it
    from evertide.server.shapes_app import make_shapes_app  # noqa: PLC0415
    from evertide.shapes.options import ShapeOptions  # noqa: PLC0415
    from evertide.shapes.service import ShapeService  # noqa: PLC0415

    options = ShapeOptions(secret=secret, deletion=deletion, shapes_max=shapes_max)
    with (
        Server(listen, is_guarded=bool(secret)) as server,
        Reader.open(storage, meta) as reader,
        ShapeService(reader.collections, options) as service,
    ):
        server.start(make_shapes_app(reader, service))
        try:
            _told(Output(is_json=is_json), server, reader)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
        finally:
            service.drain()
            server.stop()


def _told(output: Output, server: Server, reader: Reader) -> None:
    if output.is_json:
        output.line({"event": "listening", "time": reader.collections.time(), "address": server.address})
    else:
        output.say(Text(f"shapes of {reader.storage.root} at {server.address}/v1/shape"))
