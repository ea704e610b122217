"""`CommandTarget`: what a command acts on, a storage or a server (`--url`).

All targets return the same values, so that a command need not know which kind it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from evertide.cli.output.output import Bars, Output
from evertide.errors import InvalidInput
from evertide.pipeline.reading.query import Answer, Question

if TYPE_CHECKING:
    import pyarrow as pa

    from evertide.checkpoint.catalog import CheckpointSummary
    from evertide.journal.journal import TransactionSummary
    from evertide.pipeline.input.pushed_files import PushFormat
    from evertide.pipeline.status.status import Status


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    number: int
    time: int
    made_at_s: float


class CommandTarget(Protocol):
    def status(self) -> Status: ...

    def journal(self, first: int, last: int | None) -> list[TransactionSummary]:
        """Oldest first."""
        ...

    def checkpoints(self) -> list[CheckpointSummary]: ...

    def query(self, question: Question) -> Answer: ...

    def subscribe(
        self, name: str, since: int | None, on_stale: Callable[[str], None], *, follow: bool
    ) -> Iterator[tuple[int, pa.Table]]:
        """Pairs of the frontier, and the changes below it that were not in an earlier pair.

        `on_stale` is called with a sentence if the view stands at an earlier transaction, each time that changes.
        """
        ...

    def explain(self, view: str | None, form: str) -> Any:
        """A dict if `form` is json, a text otherwise."""
        ...

    def push(
        self, table: str, file: Path, form: PushFormat | None, *, is_delete: bool, producer: str, sequence: int | None
    ) -> tuple[int, int]:
        """The number of rows, and the time of their transaction."""
        ...

    def checkpoint(self) -> NewCheckpoint: ...

    def pause(self) -> str:
        """The new state of the pipeline."""
        ...

    def resume(self) -> str: ...

    def retry(self, views: Sequence[str]) -> None:
        """Recompute failed views, one after the other."""
        ...


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The global options for a server: `evertide --url URL ...`."""

    url: str | None = None
    token_file: Path | None = None
    token: str | None = None
    authority: Path | None = None


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The options of a command for a storage; None for those that it does not have."""

    storage: str | None = None
    meta: str | None = None
    script: Path | None = None
    master: str | None = None


@contextmanager
def open_target(
    context: typer.Context, output: Output, options: StorageOptions, *, needs_storage: bool = True
) -> Iterator[CommandTarget]:
    server = context.obj if isinstance(context.obj, ServerOptions) else ServerOptions()
    with ExitStack() as stack:
        if server.url is not None:
            _refuse_storage_options(options)
            from evertide.cli.target.server_target import ServerTarget  # noqa: PLC0415 - httpx, not needed locally

            yield stack.enter_context(ServerTarget.open(server))
            return
        if options.storage is None and needs_storage:
            why = "set --storage, or use a server: `evertide --url URL COMMAND`"
            raise InvalidInput(where="--storage", why=why)
        from evertide.cli.target.storage_target import StorageTarget  # noqa: PLC0415

        yield StorageTarget(options, output, stack, stack.enter_context(Bars(output)))


def _refuse_storage_options(options: StorageOptions) -> None:
    for name, value in (("--storage", options.storage), ("--script", options.script), ("--master", options.master)):
        if value is not None:
            raise InvalidInput(where=name, why="this option cannot be combined with --url; the server has its own")
