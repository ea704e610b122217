"""The options that several commands share, each spelled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from evertide.cli.output.logs import LogFormat, LogLevel
from evertide.errors import InvalidInput
from evertide.settings import Settings
from evertide.shapes.options import ShapeOptions
from evertide.suggestions import suggest

Storage = Annotated[
    str, typer.Option("--storage", metavar="DIR", envvar="EVERTIDE_STORAGE", help="Directory or s3://bucket/prefix.")
]
StorageOrUrl = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR",
        envvar="EVERTIDE_STORAGE",
        help="Directory or s3://bucket/prefix; not with `evertide --url`.",
    ),
]
ScriptOrUrl = Annotated[
    Path | None, typer.Option("--script", metavar="SCRIPT", help="SQL file of the pipeline; not with `evertide --url`.")
]
Meta = Annotated[
    str | None,
    typer.Option(
        "--meta",
        metavar="URL",
        envvar="EVERTIDE_META",
        help="PostgreSQL database with the storage's records (Meta); by default SQLite in DIR.",
    ),
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
        help="A token with the role read, which Electric's clients send as secret. Prefer the environment variable.",
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        envvar="EVERTIDE_TOKENS_FILE",
        show_envvar=True,
        help="Access tokens (docs/security.md), besides EVERTIDE_TOKEN, _READ, _WRITE and _ADMIN.",
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Server certificate in PEM; turns on HTTPS.")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Key of the certificate in PEM.")]
TlsClientCa = Annotated[
    Path | None, typer.Option("--tls-client-ca", metavar="FILE", help="Require client certificates of this authority.")
]
AllowDeletion = Annotated[bool, typer.Option("--allow-deletion", help="Let clients end shapes.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="Accept requests for this host name too, such as that of a proxy."
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin", metavar="URL", help="Let pages of this origin use the API, as in https://app.example."
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let other machines connect without tokens.")]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar="EVERTIDE_LOG_FORMAT", help="Format of the log on standard error.")
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        envvar="EVERTIDE_LOG_LEVEL",
        help="Lowest level to log; by default warning as text, info as JSON.",
    ),
]
TracesOption = Annotated[
    bool,
    typer.Option(
        "--traces",
        envvar="EVERTIDE_TRACES",
        help="Send OpenTelemetry traces, as the variables OTEL_... configure; needs the extra 'traces'.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="SQL file, or Declarative Pipelines project.")]

ShapeAssignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting, such as shapes.log_cache_s=10. Can be repeated."
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, such as writer_ttl_s=5. Can be repeated."),
]

_RENAMED = {"beat_interval_s": "heartbeat_interval_s", "collection_interval_s": "garbage_interval_s"}
"""The earlier names of settings. For these, the most similar name is that of another setting."""


_OF_SHAPES = "shapes."
"""The prefix of settings of the server of shapes."""


def make_settings(assignments: Sequence[str] | None, **options: float) -> Settings:
    """The defaults, overridden by `options` (command line options other than `--set`), and then by `assignments`.

    Assignments for shapes are ignored: see `make_shape_options`.
    """
    own = [text for text in assignments or () if not text.strip().startswith(_OF_SHAPES)]
    return Settings(**_parse_assignments(own, Settings, options))  # type: ignore[arg-type]


def make_shape_options(assignments: Sequence[str] | None, *, deletion: bool, **options: float) -> ShapeOptions:
    """The same for the server of shapes; assignments for other settings are ignored."""
    own = [text for text in assignments or () if text.strip().startswith(_OF_SHAPES)]
    return ShapeOptions(deletion=deletion, **_parse_assignments(own, ShapeOptions, options, _OF_SHAPES))  # type: ignore[arg-type]


def _parse_assignments(
    assignments: Sequence[str],
    kind: type[Settings | ShapeOptions],
    options: Mapping[str, float],
    prefix: str = "",
) -> dict[str, int | float]:
    types = {f"{prefix}{field.name}": field.type for field in fields(kind) if field.type != "bool"}
    values: dict[str, int | float] = dict(options)
    for text in assignments:
        name, _, value = (part.strip() for part in text.partition("="))
        where = f"--set {text}"
        if name not in types:
            if name in _RENAMED:
                raise InvalidInput(where=where, why=f"the setting {name!r} is now {_RENAMED[name]!r}")
            raise InvalidInput(where=where, why=f"the setting {name!r} does not exist{suggest(name, types)}")
        try:
            values[name.removeprefix(prefix)] = int(value) if types[name] == "int" else float(value)
        except ValueError:
            expected = "a whole number" if types[name] == "int" else "a number"
            raise InvalidInput(where=where, why=f"{name} must be {expected}, not {value!r}") from None
    return values
