"""The options that several commands share, each spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertide.cli.output.logs import LogFormat, LogLevel

__all__ = [
    "AllowDeletion",
    "AllowHost",
    "Insecure",
    "Json",
    "LogAs",
    "LogFrom",
    "Master",
    "Meta",
    "Script",
    "ScriptOrUrl",
    "ShapesSecret",
    "Storage",
    "StorageOrUrl",
    "TlsCert",
    "TlsClientCa",
    "TlsKey",
    "Tokens",
    "Traced",
]

Storage = Annotated[
    str, typer.Option("--storage", metavar="DIR", envvar="EVERTIDE_STORAGE", help="Directory or s3://bucket/prefix.")
]
StorageOrUrl = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR",
        envvar="EVERTIDE_STORAGE",
        help="Directory or s3://bucket/prefix; nothing with `evertide --url`.",
    ),
]
ScriptOrUrl = Annotated[
    Path | None,
    typer.Option("--script", metavar="SCRIPT", help="SQL file that the pipeline runs; nothing with `evertide --url`."),
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
        help="A token that may read, as Electric's clients name it. Rather by the environment.",
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        envvar="EVERTIDE_TOKENS_FILE",
        show_envvar=True,
        help="Who may ask, and for what: docs/security.md. EVERTIDE_TOKEN, _READ, _WRITE and _ADMIN are tokens, too.",
    ),
]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate, in PEM: HTTPS.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, in PEM.")]
TlsClientCa = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="Clients need a certificate of this authority, too."),
]
AllowDeletion = Annotated[bool, typer.Option("--allow-deletion", help="Let clients end shapes.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another name that requests may name; of a proxy in front."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen also for other machines though there are no tokens.")
]
LogAs = Annotated[
    LogFormat,
    typer.Option("--log-format", envvar="EVERTIDE_LOG_FORMAT", help="How the log is written, to standard error."),
]
LogFrom = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level", envvar="EVERTIDE_LOG_LEVEL", help="From which level on; as text warnings, as JSON information."
    ),
]
Traced = Annotated[
    bool,
    typer.Option("--traces", envvar="EVERTIDE_TRACES", help="Send spans, as the variables OTEL_... say. An extra."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")]
Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="SQL file, or Declarative Pipelines project.")]
