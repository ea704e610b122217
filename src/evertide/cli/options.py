"""The options that several commands share, each spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Json", "Master", "Meta", "Script", "ScriptOption", "ShapesSecret", "Storage"]

Storage = Annotated[
    str, typer.Option("--storage", metavar="DIR", envvar="EVERTIDE_STORAGE", help="Directory or s3://bucket/prefix.")
]
Meta = Annotated[
    str | None,
    typer.Option("--meta", metavar="URL", envvar="EVERTIDE_META", help="PostgreSQL URL, if Meta lies there."),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; all cores of this machine by default.")
]
ShapesSecret = Annotated[
    str,
    typer.Option(
        "--shapes-secret",
        metavar="SECRET",
        envvar="EVERTIDE_SHAPES_SECRET",
        show_envvar=True,
        help="What requests for shapes must name. Rather by the environment than by the command line.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")]
Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="SQL file that declares tables and views.")]
ScriptOption = Annotated[
    Path, typer.Option("--script", metavar="SCRIPT", help="SQL file that the pipeline of the storage runs.")
]
