"""`ServerTarget`: a pipeline that another process serves over HTTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa

from evertide.checkpoint.catalog import CheckpointSummary
from evertide.cli.target.push_file import choose_format, open_push_file
from evertide.cli.target.target import NewCheckpoint, ServerOptions
from evertide.client import Client
from evertide.errors import InvalidInput
from evertide.journal.journal import TransactionSummary
from evertide.pipeline.input.pushed_files import PushFormat
from evertide.pipeline.reading.query import Answer, Question
from evertide.pipeline.status.status import Status

logger = logging.getLogger(__name__)

_PAGE = 1000


@dataclass(frozen=True)
class ServerTarget:
    client: Client

    @classmethod
    @contextmanager
    def open(cls, options: ServerOptions) -> Iterator[Self]:
        with Client(options.url or "", _read_token(options), tls=options.authority) as client:
            yield cls(client)

    def status(self) -> Status:
        status = self.client.status()
        numbered = [(one["number"], one["time"]) for one in status["checkpoints"]]
        return msgspec.convert({**status, "checkpoints": numbered}, Status)

    def journal(self, first: int, last: int | None) -> list[TransactionSummary]:
        before = None if last is None else last + 1
        found: list[TransactionSummary] = []
        while True:
            page = msgspec.convert(self.client.journal(before, _PAGE), list[TransactionSummary])
            found += [line for line in page if line.time >= first]
            if len(page) < _PAGE or page[-1].time <= first:
                return found[::-1]
            before = page[-1].time

    def checkpoints(self) -> list[CheckpointSummary]:
        return msgspec.convert(self.client.checkpoints(), list[CheckpointSummary])

    def query(self, question: Question) -> Answer:
        return self.client.query(
            question.sql,
            as_of=question.as_of,
            engine=question.engine,
            limit=question.limit,
            parameters=question.parameters,
        )

    def subscribe(
        self, name: str, since: int | None, on_stale: Callable[[str], None], *, follow: bool
    ) -> Iterator[tuple[int, pa.Table]]:
        return self.client.subscribe(name, since, follow=follow, on_stale=on_stale)

    def explain(self, view: str | None, form: str) -> Any:
        if view is not None:
            return self.client.explain(view, form)
        views = [one["name"] for one in self.client.collections() if one["kind"] == "view"]
        found = [self.client.explain(name, form) for name in views]
        if form != "json":
            return "\n".join(found)
        arranged = {each["name"]: each for one in found for each in one["arrangements"]}
        return {"views": [view for one in found for view in one["views"]], "arrangements": [*arranged.values()]}

    def push(
        self, table: str, file: Path, form: PushFormat | None, *, is_delete: bool, producer: str, sequence: int | None
    ) -> tuple[int, int]:
        kind = choose_format(file, form)
        with open_push_file(file) as path:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise InvalidInput(where=str(file), why=f"cannot read the file: {error.strerror}") from error
        result = self.client.push_body(table, content, kind, deletes=is_delete, producer=producer, sequence=sequence)
        if result.get("problem"):
            logger.warning(
                "the rows are durable, and become visible when the pipeline continues: %s", result["problem"]
            )
        return result["rows"], result["time"]

    def checkpoint(self) -> NewCheckpoint:
        return msgspec.convert(self.client.checkpoint(), NewCheckpoint)

    def pause(self) -> str:
        return str(self.client.pause()["state"])

    def resume(self) -> str:
        return str(self.client.resume()["state"])

    def retry(self, views: Sequence[str]) -> None:
        for view in views:
            self.client.retry(view)


def _read_token(options: ServerOptions) -> str | None:
    if options.token_file is None:
        return options.token
    try:
        return options.token_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidInput(
            where=f"--token-file {os.fspath(options.token_file)}", why=f"cannot read the file: {why}"
        ) from error
