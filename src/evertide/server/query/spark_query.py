"""`SparkQueryEngine`: runs a query with Spark, in a worker process with its own session.

1. The JVM's heap is bounded. A JVM that runs out of memory ends, and the next query gets a new worker.
2. Spark's tasks stream the collections from storage with `spark.read.format("evertide")`, all at one time. So the size
   of a collection is not limited.
3. If tasks of a cancelled query do not stop soon, the worker is replaced.
4. Spark writes to the worker's scratch directory, which the server measures and removes.
5. The session uses the settings of the pipeline (time zone, ANSI), as the views do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evertide.errors import InvalidInput, NotAllowedNow, QueryEnded, SparkEnded
from evertide.pipeline.names import ERRORS
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.reading.query import Question
from evertide.pipeline.reading.reader import StorageReader
from evertide.plan.catalyst.session import Session, open_session
from evertide.plan.query.query import apply_result_settings, pad_comparisons, read_stored, run_query
from evertide.server.query.bounds import choose_heap_bytes, make_memory_error
from evertide.server.query.duck import make_size_error
from evertide.server.query.duck_query import EngineAnswer, choose_time, find_row_limit, find_stale, pin_collections
from evertide.settings import Settings
from evertide.shard.read import TimeWindow, list_parts

if TYPE_CHECKING:
    from evertide.plan.catalyst.session import SparkSession

_LEASE_SPARE_S = 60
_CHECK_EVERY_S = 0.05
_CHECKS = 10
_MIB = 1024 * 1024
_OUT_OF_MEMORY = (3, 52)
"""Exit codes of a JVM without memory: of the JVM itself, and of Spark."""


@dataclass
class SparkQueryEngine:
    reader: StorageReader
    session: Session
    options: Mapping[str, str]
    is_over: bool = False
    """Whether the JVM has ended."""
    is_interrupted: bool = False
    """Whether the last query was interrupted."""

    @classmethod
    def open(cls, reader: StorageReader, start: Mapping[str, Any]) -> SparkQueryEngine:
        settings = reader.settings
        session = open_session(None, start["master"] or f"local[{settings.query_threads}]", _spark_settings(start))
        apply_result_settings(session.spark, start["results"])
        options = {"storage": start["location"], "lease_s": str(int(settings.query_limit_s) + _LEASE_SPARE_S)}
        if start["meta"] is not None:
            options["meta"] = start["meta"]
        engine = cls(reader, session, options)
        with suppress(InvalidInput, NotAllowedNow):  # before the first transaction there is nothing to read
            engine.answer(Question(f"SELECT count(*) AS n FROM {ERRORS}"))  # warm-up: the first query is much slower
        return engine

    def answer(self, question: Question) -> EngineAnswer:
        settings, collections = self.reader.settings, pin_collections(self.reader)
        time, most = collections.find_time(), find_row_limit(question, settings)
        stale: list[str] = []

        def load(session: SparkSession, names: Sequence[str]) -> Mapping[str, Any]:
            nonlocal time, stale
            views = [collections.view(name).name for name in names]
            time = _find_readable_time(collections, question, views)
            stale = find_stale(collections, question, views)
            options = {**self.options, "as_of": str(time)}
            return {
                name: pad_comparisons(read_stored(session, options, name), collections.list_compared_types(name))
                for name in views
            }

        try:
            rows = run_query(
                self.session.spark,
                question.sql,
                load,
                question.parameters,
                rows_max=most + 1,
                explain_unknown=collections.explain_unknown,
            )
        except SparkEnded as error:
            self.is_over = True
            if self.session.wait_for_jvm_exit() not in _OUT_OF_MEMORY:
                raise QueryEnded(path="spark", why=error.why) from error
            raise make_memory_error(choose_heap_bytes(settings)) from error
        if rows.nbytes > settings.query_bytes_max:
            raise make_size_error(settings.query_bytes_max)
        return EngineAnswer(time, rows.slice(0, most), rows.num_rows > most, stale)

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.session.cancel()

    def needs_replacement(self) -> bool:
        """A task of a cancelled query may run for hours, and slow down later queries."""
        is_interrupted, self.is_interrupted = self.is_interrupted, False
        runtime = self.reader.runtime
        for _ in range(_CHECKS if is_interrupted else 0):
            if self.is_over or not self.session.has_tasks():
                return self.is_over
            runtime.sleep_s(_CHECK_EVERY_S)
        return self.is_over or is_interrupted

    def close(self) -> None:
        self.session.close()
        self.reader.close()


def _find_readable_time(collections: Collections, question: Question, names: Sequence[str]) -> int:
    """The time of the query. Checked here, because Spark reduces an error to its text."""
    time = choose_time(collections, question, names)
    if time > collections.find_time():
        raise InvalidInput(
            where=f"time {time}", why=f"the time is in the future; the last time is {collections.find_time()}"
        )
    for name in names:
        at = collections.resolve_time(name, time)
        if at < 0:
            raise NotAllowedNow(where=f"collection {name!r}", why="the collection has no content yet")
        log = collections.members().open_collection(name).log
        list_parts(log, log.read(), TimeWindow(0, at + 1, at))  # raises if the time is below since
    return time


def _spark_settings(start: Mapping[str, Any]) -> dict[str, str]:
    settings, scratch = Settings(**start["settings"]), start["scratch"]
    java = f"-XX:+ExitOnOutOfMemoryError -XX:-UsePerfData -Djava.io.tmpdir={scratch} -Dderby.system.home={scratch}"
    return {
        "spark.driver.memory": f"{choose_heap_bytes(settings) // _MIB}m",
        "spark.driver.defaultJavaOptions": java,
        "spark.eventLog.enabled": "false",
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": str(4 * settings.query_threads),
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
