"""`Workers`: the pool of worker processes, and the choice of the engine that answers a query.

1. There is one DuckDB worker per concurrent query, and one Spark worker that answers one query at a time. The caller
   bounds the number of concurrent queries (`queries_max`).
2. A worker starts when it is first needed, and stays for later queries. It ends after `query_idle_s` without a query,
   or with this process.
3. A query with engine `auto` goes to DuckDB first. If DuckDB declines the query, it goes to Spark. If the pipeline does
   not run on Spark, DuckDB answers every query.
4. A worker encodes the rows in the format of the answer. So this process never holds rows as Python values, which may
   take a thousand times the memory of their Arrow form.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import pyarrow as pa

from evertide.errors import InvalidInput, QueryEnded
from evertide.json_values import error_from_json
from evertide.media import ARROW
from evertide.pipeline.reading.query import Answer, EngineChoice, Question
from evertide.runtime import Runtime
from evertide.server.query.bounds import choose_spark_bytes
from evertide.server.query.wire import Frame
from evertide.server.query.worker_process import EngineOptions, Worker, WorkerEnded, make_stop_error
from evertide.settings import Settings
from evertide.store.open import StorageAddress

logger = logging.getLogger(__name__)

Results = Callable[[], Mapping[str, str]]
"""Returns the Spark settings that affect results; called when a worker starts."""


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """`body` has the rows in the format `Question.media`; as JSON, an object of `columns` and `rows`."""

    time: int
    body: bytearray
    is_truncated: bool
    engine: EngineChoice
    took_ms: float
    stale: tuple[str, ...]

    def decode(self) -> Answer:
        """For rows in Arrow's format."""
        with pa.ipc.open_stream(pa.py_buffer(self.body)) as stream:
            rows = stream.read_all()
        return Answer(self.time, rows, self.is_truncated, self.engine, self.took_ms, self.stale)


class Workers:
    """Thread-safe."""

    def __init__(
        self,
        address: StorageAddress | None,
        results: Results,
        *,
        settings: Settings,
        runtime: Runtime,
        has_spark: bool = True,
        master: str = "",
    ) -> None:
        self._address = address
        self._results = results
        self._settings = settings
        self._runtime = runtime
        self._has_spark = has_spark
        self._master = master
        self._lock = threading.Lock()
        self._free: list[Worker] = []
        self._busy: list[Worker] = []
        self._is_closed = False

    def ask(self, question: Question) -> Answer:
        question = replace(question, media=ARROW)
        return (self.ask_duckdb(question) or self.ask_spark(question)).decode()

    def ask_duckdb(self, question: Question) -> EncodedAnswer | None:
        """None if Spark has to answer the query."""
        if question.engine is EngineChoice.spark:
            return None
        may_decline = question.engine is EngineChoice.auto and self._has_spark
        began_s = self._runtime.monotonic_s()
        frame = self._exchange(
            EngineChoice.duckdb, question if may_decline else replace(question, engine=EngineChoice.duckdb)
        )
        if may_decline and frame.facts.get("is_declined"):
            return None
        return self._make_answer(EngineChoice.duckdb, frame, began_s)

    def ask_spark(self, question: Question) -> EncodedAnswer:
        if not self._has_spark:
            raise InvalidInput(where="engine 'spark'", why="the pipeline runs without Spark; use 'duckdb'")
        began_s = self._runtime.monotonic_s()
        return self._make_answer(EngineChoice.spark, self._exchange(EngineChoice.spark, question), began_s)

    def close(self) -> None:
        """End all workers, including those that are answering a query."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
            for worker in self._busy:
                worker.stop()
        for worker in free:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _exchange(self, engine: EngineChoice, question: Question) -> Frame:
        while True:
            worker = self._get_worker(engine)
            try:
                return worker.ask(question)
            except WorkerEnded:  # the worker reached `query_idle_s`, or was killed
                continue
            finally:
                self._return_worker(worker)

    def _get_worker(self, engine: EngineChoice) -> Worker:
        with self._lock:
            self._check_open(engine)
            for free in self._free:
                if free.engine is engine:
                    self._free.remove(free)
                    self._busy.append(free)
                    return free
        worker = Worker(self._make_options(engine), self._settings, self._runtime)
        with self._lock:
            if not self._is_closed:
                self._busy.append(worker)
                return worker
        worker.end()
        raise make_stop_error(engine)

    def _check_open(self, engine: EngineChoice) -> None:
        if self._is_closed:
            raise make_stop_error(engine)

    def _return_worker(self, worker: Worker) -> None:
        with self._lock:
            self._busy.remove(worker)
            if not worker.is_over and not self._is_closed:
                self._free.append(worker)
                return
        worker.end()

    def _make_options(self, engine: EngineChoice) -> EngineOptions:
        if self._address is None:
            raise InvalidInput(
                where="query",
                why="query processes cannot read a storage in memory; use a directory",
            )
        if engine is EngineChoice.duckdb:
            return EngineOptions(engine, self._address, self._results())
        memory_bytes = choose_spark_bytes(self._settings)
        return EngineOptions(engine, self._address, self._results(), memory_bytes=memory_bytes, master=self._master)

    def _make_answer(self, engine: EngineChoice, frame: Frame, began_s: float) -> EncodedAnswer:
        facts = frame.facts
        if "traceback" in facts:
            logger.error("internal error in a query by %s: %s", engine, facts["traceback"])
        if "error" in facts:
            raise error_from_json(facts["error"]) or QueryEnded(path=engine.value, why=str(facts["error"]))
        took_ms = round((self._runtime.monotonic_s() - began_s) * 1000, 3)
        stale = tuple(facts["stale"])
        return EncodedAnswer(facts["time"], frame.body, facts["is_truncated"], engine, took_ms, stale)
