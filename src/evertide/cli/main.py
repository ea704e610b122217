"""The command `evertide`: its subcommands, its global options, its start and its exit.

Modules of commands import no pyspark at their top; a command that needs Spark imports it when it runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from typer.exceptions import TyperException

from evertide import __version__
from evertide.cli.commands import demo as demo_command
from evertide.cli.commands import query as query_commands
from evertide.cli.commands import run as run_commands
from evertide.cli.commands import shapes
from evertide.cli.commands import status as status_commands
from evertide.cli.commands import storage as storage_commands
from evertide.cli.target.target import ServerOptions

_SERVER_COMMANDS = (
    *("status", "query", "push", "subscribe", "explain", "checkpoint", "checkpoints", "journal"),
    *("pause", "resume", "retry"),
)
"""Commands that can call a server (`--url`)."""

app = typer.Typer(
    name="evertide",
    help="Incremental SQL views on Apache Spark.",
    epilog="Start with: evertide demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        typer.echo(f"evertide {__version__}")
        raise typer.Exit


@app.callback()
def evertide(
    context: typer.Context,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", envvar="EVERTIDE_URL", help="Send the command to the server at this address."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="File with the access token; or set EVERTIDE_TOKEN."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="Certificate authority of the server, if the system does not trust it."
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback prints the version
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Incremental SQL views on Apache Spark."""
    if url is not None and context.invoked_subcommand not in _SERVER_COMMANDS:
        if url != os.environ.get("EVERTIDE_URL"):
            raise typer.BadParameter(f"--url can be used with {', '.join(_SERVER_COMMANDS)}.")
        url = None  # set in the environment, for other commands
    context.obj = ServerOptions(url, token_file, os.environ.get("EVERTIDE_TOKEN"), authority)


app.command("run")(run_commands.run)
app.command("plan")(run_commands.plan)
app.command("push")(run_commands.push)
app.command("checkpoint")(run_commands.checkpoint)
app.command("promote")(run_commands.promote)
app.command("demo")(demo_command.demo)
app.command("status")(status_commands.status)
app.command("explain")(query_commands.explain)
app.command("query")(query_commands.query)
app.command("subscribe")(query_commands.subscribe)
app.command("shapes")(shapes.shapes)
app.command("journal")(status_commands.journal)
app.command("checkpoints")(status_commands.checkpoints)
app.command("export")(storage_commands.export)
app.command("import")(storage_commands.import_)
app.command("fsck")(storage_commands.fsck)
app.command("gc")(storage_commands.gc)
app.command("pause")(run_commands.pause)
app.command("resume")(run_commands.resume)
app.command("retry")(run_commands.retry)


def main() -> None:
    """The entry point of the console script. Reports an invalid command line like any other error."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(standalone_mode=False, prog_name="evertide")
    except TyperException as error:
        _report(error)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Let SIGTERM end a command in the same orderly way as Ctrl-C."""
    raise KeyboardInterrupt


def _report(error: TyperException) -> None:
    message = error.format_message()
    remedy = "See `evertide --help`, or `evertide COMMAND --help`."
    if "--json" in sys.argv:
        sys.stderr.write(json.dumps({"error_code": "usage", "message": message, "remedy": remedy}) + "\n")
    elif message.startswith("Usage:"):  # no command was given: print the help
        sys.stderr.write(f"{message}\n")
    else:
        sys.stderr.write(f"evertide: {message} {remedy}\n")
