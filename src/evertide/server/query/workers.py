"""`Workers`: the pool of worker processes, and the choice of the engine that answers a query.

1. There is one DuckDB worker per concurrent query, and one Spark worker that answers one query at a time. The caller
   bounds the number of concurrent queries (`queries_max`).
2. A worker starts when it is first needed, and stays for later queries. It ends after `query_idle_s` without a query,
   or with this process.
3. A query with engine `auto` goes to DuckDB first. If DuckDB declines the query, it goes to Spark. If the pipeline does
   not run on Spark, DuckDB answers every query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

import pyarrow as pa

from evertide.errors import InvalidInput, QueryEnded
from evertide.json_values import error_from_json
from evertide.pipeline.reading.query import Answer, Chosen, Question
from evertide.runtime import Runtime
from evertide.server.query.bounds import spark_bytes
from evertide.server.query.process import Idle, Opening, Worker
from evertide.server.query.wire import Frame
from evertide.settings import Settings
from evertide.store.open import Address

__all__ = ["Results", "Workers"]

Results = Callable[[], Mapping[str, str]]
"""Returns the Spark settings that affect results; called when a worker starts."""


class Workers:
    """Thread-safe."""

    def __init__(
        self,
        address: Address | None,
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
        return self.by_duckdb(question) or self.by_spark(question)

    def by_duckdb(self, question: Question) -> Answer | None:
        """None if Spark has to answer the query."""
        if question.engine is Chosen.spark:
            return None
        is_open = question.engine is Chosen.auto and self._has_spark
        began_s = self._runtime.monotonic_s()
        frame = self._told(Chosen.duckdb, question if is_open else replace(question, engine=Chosen.duckdb))
        if is_open and frame.told.get("is_declined"):
            return None
        return self._answer(Chosen.duckdb, frame, began_s)

    def by_spark(self, question: Question) -> Answer:
        if not self._has_spark:
            raise InvalidInput(where="engine 'spark'", why="this pipeline does not run on Spark")
        began_s = self._runtime.monotonic_s()
        return self._answer(Chosen.spark, self._told(Chosen.spark, question), began_s)

    def pids(self) -> list[int]:
        with self._lock:
            return [worker.pid for worker in (*self._free, *self._busy) if worker.is_alive]

    def close(self) -> None:
        """End all workers, including those that are answering a query."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
            for worker in self._busy:
                worker.kill()
        for worker in free:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _told(self, engine: Chosen, question: Question) -> Frame:
        while True:
            worker = self._taken(engine)
            try:
                return worker.ask(question)
            except Idle:  # the worker reached `query_idle_s`, or was killed
                continue
            finally:
                self._give_back(worker)

    def _taken(self, engine: Chosen) -> Worker:
        known = self._known(engine)
        if known is not None:
            return known
        worker = Worker(self._opening(engine), self._settings, self._runtime)
        with self._lock:
            if not self._is_closed:
                self._busy.append(worker)
                return worker
        worker.end()
        raise _closed()

    def _known(self, engine: Chosen) -> Worker | None:
        with self._lock:
            if self._is_closed:
                raise _closed()
            found = next((one for one in self._free if one.engine is engine), None)
            if found is not None:
                self._free.remove(found)
                self._busy.append(found)
            return found

    def _give_back(self, worker: Worker) -> None:
        with self._lock:
            self._busy.remove(worker)
            if not worker.is_over and not self._is_closed:
                self._free.append(worker)
                return
        worker.end()

    def _opening(self, engine: Chosen) -> Opening:
        if self._address is None:
            raise InvalidInput(where="query", why="this storage is in the memory of one process: no other can read it")
        if engine is Chosen.duckdb:
            return Opening(engine, self._address, self._results())
        bound = spark_bytes(self._settings)
        return Opening(engine, self._address, self._results(), memory_bytes=bound, master=self._master)

    def _answer(self, engine: Chosen, frame: Frame, began_s: float) -> Answer:
        told = frame.told
        if "error" in told:
            raise error_from_json(told["error"]) or QueryEnded(path=engine.value, why=str(told["error"]))
        with pa.ipc.open_stream(pa.py_buffer(frame.body)) as stream:
            rows = stream.read_all()
        took_ms = round((self._runtime.monotonic_s() - began_s) * 1000, 3)
        return Answer(told["time"], rows, told["is_truncated"], engine, took_ms)


def _closed() -> QueryEnded:
    return QueryEnded(path="query", why="the server is being stopped")
