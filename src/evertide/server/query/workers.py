"""`Workers`: the processes that answer queries, and which of them is asked.

1. DuckDB has as many as there are questions at the same time; Spark has one, which takes a question at a time. Whoever
   asks sees to it that there are no more (`queries_max`).
2. They are started when they are first needed, and kept for the next question. They end by themselves when nobody asks
   for long (`query_idle_s`), and with this process.
3. A question that leaves the engine open is for DuckDB, and if that declines it, for Spark. Without a Spark, DuckDB
   answers all.
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
"""The settings that decide results; asked for when a worker is started."""


class Workers:
    """May be shared between threads."""

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
        """None if Spark is to be asked."""
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
        """Ends them all, also those that are being asked."""
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
            except Idle:  # or somebody has killed it
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
