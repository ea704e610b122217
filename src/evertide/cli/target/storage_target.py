"""`StorageTarget`: a storage that this process reads, or opens as its only writer for `push` and `checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evertide.checkpoint.catalog import CheckpointSummary
from evertide.cli.output.output import Bars, Output
from evertide.cli.running.open_pipeline import open_pipeline, open_spark
from evertide.cli.target.following import FollowedCheck, read_complete_changes
from evertide.cli.target.push_file import choose_format, open_push_file
from evertide.cli.target.target import NewCheckpoint, StorageOptions
from evertide.errors import InvalidInput
from evertide.journal.journal import TransactionSummary
from evertide.pipeline.input.pushed_files import PushFormat, read_pushed_file
from evertide.pipeline.reading.query import Answer, Question
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.script_reader import read_script
from evertide.pipeline.status.status import Status
from evertide.suggestions import list_names

if TYPE_CHECKING:
    from evertide.flow.explanation.explanation import Explanation
    from evertide.pipeline.pipeline import Pipeline
    from evertide.plan.catalyst.session import SparkSession


@dataclass(frozen=True)
class StorageTarget:
    options: StorageOptions
    output: Output
    stack: ExitStack = field(repr=False)
    bars: Bars = field(repr=False)

    @cached_property
    def _reader(self) -> StorageReader:
        return self.stack.enter_context(StorageReader.open(self._storage, self.options.meta))

    @property
    def _storage(self) -> str:
        if self.options.storage is None:
            raise InvalidInput(where="--storage", why="set --storage to a directory or s3://bucket/prefix")
        return self.options.storage

    @property
    def _script(self) -> Path:
        if self.options.script is None:
            raise InvalidInput(where="--script", why="set --script to the script of the pipeline")
        return self.options.script

    def _start_spark(self) -> SparkSession:
        with self.bars.show_work("Spark"):
            return self.stack.enter_context(open_spark(self.options.master)).spark

    def status(self) -> Status:
        return self._reader.status()

    def journal(self, first: int, last: int | None) -> list[TransactionSummary]:
        return self._reader.journal.describe(first, last)

    def checkpoints(self) -> list[CheckpointSummary]:
        return self._reader.checkpoints.summarize()

    def query(self, question: Question) -> Answer:
        from evertide.server.query.workers import Workers  # noqa: PLC0415 - not needed by other commands

        reader = self._reader
        master = self.options.master or os.environ.get("SPARK_MASTER", "local[*]")
        # The storage does not record the pipeline's time zone, so both engines use UTC.
        results = {"spark.sql.session.timeZone": "UTC"}
        with Workers(
            reader.storage.address, results.copy, settings=reader.settings, runtime=reader.runtime, master=master
        ) as workers:
            answer = workers.ask_duckdb(question)
            if answer is not None:
                return answer.decode()
            with self.bars.show_work("Spark"):
                return workers.ask_spark(question).decode()

    def subscribe(
        self, name: str, since: int | None, on_stale: Callable[[str], None], *, follow: bool
    ) -> Iterator[tuple[int, pa.Table]]:
        view = self._reader.collections.view(name)
        shard, last = view.locate()
        if since is not None and since > last:
            raise InvalidInput(where=f"--since {since}", why=f"the time is in the future; the last time is {last}")
        check = FollowedCheck(view, shard, on_stale)
        check()
        source = shard.subscribe(last) if since is None else shard.listen(since)
        if not follow and since == last:
            return
        with source:
            for frontier, changes in read_complete_changes(source, shard.schema, check):
                yield frontier, changes
                if not follow and frontier > last:
                    return

    def explain(self, view: str | None, form: str) -> Any:
        text, path, _ = read_script(self._script)
        spark = self._start_spark()
        from evertide.flow import Circuit  # noqa: PLC0415 - pyspark
        from evertide.flow import explain as explain_circuit  # noqa: PLC0415 - pyspark
        from evertide.flow.explanation.diagrams import render_dot, render_mermaid  # noqa: PLC0415 - pyspark

        found = explain_circuit(Circuit(spark, text, path=path))
        chosen = found if view is None else _select_view(found, view)
        if form == "json":
            return chosen.to_dict()
        if form == "text":
            return chosen.text(has_state=False)
        return render_mermaid(chosen) if form == "mermaid" else render_dot(chosen)

    def push(
        self, table: str, file: Path, form: PushFormat | None, *, is_delete: bool, producer: str, sequence: int | None
    ) -> tuple[int, int]:
        kind, rows = choose_format(file, form), 0
        with open_push_file(file) as path, self._open_pipeline() as pipeline:
            with pipeline.transaction(producer, sequence or 0) as pushed:
                for batch in read_pushed_file(
                    pipeline.engine.tables, table, path, kind, str(file), is_delete=is_delete
                ):
                    pushed.push(table, () if is_delete else batch, deletes=batch if is_delete else ())
                    rows += batch.num_rows
            return rows, pipeline.take(pushed)

    def checkpoint(self) -> NewCheckpoint:
        with self._open_pipeline(must_exist=True) as pipeline:
            entry = pipeline.checkpoint()
            return NewCheckpoint(entry.number, entry.time, entry.made_at_s)

    def retry(self, views: Sequence[str]) -> None:
        with self._open_pipeline(must_exist=True) as pipeline:
            for view in views:
                pipeline.retry(view)

    def _open_pipeline(self, *, must_exist: bool = False) -> AbstractContextManager[Pipeline]:
        options = self.options
        return open_pipeline(
            self._script, self._storage, self.output, meta=options.meta, master=options.master, must_exist=must_exist
        )

    def pause(self) -> str:
        raise _make_remote_only_error("pause")

    def resume(self) -> str:
        raise _make_remote_only_error("resume")


def _make_remote_only_error(what: str) -> InvalidInput:
    return InvalidInput(where=what, why=f"only a running pipeline can do this; use `evertide --url URL {what}`")


def _select_view(found: Explanation, view: str) -> Explanation:
    declared = next((name for name in found.names if name.lower() == view.lower()), None)
    if declared is None:
        why = f"the script has no such materialized view{list_names(view, found.names, 'it has')}"
        raise InvalidInput(where=f"view {view!r}", why=why)
    return found.select_view(declared)
