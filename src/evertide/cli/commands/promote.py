"""`promote`: makes a replica the leader."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from evertide.cli.options import Json, Meta, Storage
from evertide.cli.output.output import Output, guarded
from evertide.pipeline.reading.reader import Reader
from evertide.pipeline.replicas.leadership import promote as promoted

__all__ = ["promote"]


@guarded
def promote(
    *,
    storage: Storage,
    writer: Annotated[
        str,
        typer.Argument(
            metavar="[WRITER]", help="The replica, as status names it; the read-only one, if it is not given."
        ),
    ] = "",
    meta: Meta = None,
    is_json: Json = False,
) -> None:
    """Make a read-only replica the one that leads. Those that led, or would have, are fenced out and end.

    Example: evertide promote --storage shop.evertide
    """
    output = Output(is_json=is_json)
    with Reader.open(storage, meta) as reader:
        chosen = promoted(reader.storage.meta, writer, runtime=reader.runtime, settings=reader.settings)
    if is_json:
        output.document({"writer": chosen.writer, "host": chosen.host, "pid": chosen.pid})
    else:
        output.say(Text(f"process {chosen.pid} on {chosen.host} leads from now on, writer {chosen.writer}"))
