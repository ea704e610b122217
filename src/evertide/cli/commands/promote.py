"""`promote`: makes a replica the leader."""

from __future__ import annotations

from typing import Annotated

import typer

from evertide.cli.options import Json, Meta, Storage
from evertide.cli.output.output import Output, report_errors
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.replicas.leadership import promote as promote_replica

__all__ = ["promote"]


@report_errors
def promote(
    *,
    storage: Storage,
    writer: Annotated[
        str,
        typer.Argument(
            metavar="[WRITER]",
            help="Writer id of the replica, from `evertide status`; needed if several are read-only.",
        ),
    ] = "",
    meta: Meta = None,
    is_json: Json = False,
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
