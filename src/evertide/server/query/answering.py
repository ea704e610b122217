"""`answer_questions`: the main loop of a worker process, after its start (`evertide.server.query.worker`).

1. The worker opens the storage as a `StorageReader`, and reports that it is ready. Then it receives queries one at a
   time, and sends one answer for each.
2. The kernel limits the memory of a DuckDB worker (`RLIMIT_DATA`): what it uses when ready, `query_memory_bytes`, and
   a spare. Spark runs in a JVM with a bounded heap; the server checks the total.
3. The worker encodes the rows in the format of the answer, so that the server only forwards bytes.
4. The worker ends after `query_idle_s` without a query. A query never ends it: an unexpected error is an answer, with
   the traceback for the server's log.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from evertide.errors import EvertideError, Unexpected
from evertide.json_values import error_to_json
from evertide.media import ARROW
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.pipeline.reading.reader import StorageReader
from evertide.rows.frames import make_names_unique
from evertide.server.endpoints.formats import encode_rows
from evertide.server.query.bounds import make_memory_error
from evertide.server.query.duck import Duck, DuckDeclined, make_size_error
from evertide.server.query.duck_query import EngineAnswer, answer_with_duckdb, pin_collections
from evertide.server.query.isolation import Isolation
from evertide.server.query.wire import Frame, read_frame, write_frame
from evertide.settings import Settings
from evertide.threads.watched import WatchedThread

_IO_THREADS = 2
_SPARE_BYTES = 128 * 1024 * 1024
"""In addition to the memory of a query: thread stacks, and memory that allocators keep."""
_KEPT_SHARE = 4
"""Allocators keep more after large queries: a further `query_memory_bytes / _KEPT_SHARE` is allowed for that."""


class QueryEngine(Protocol):
    def answer(self, question: Question) -> EngineAnswer: ...

    def interrupt(self) -> None:
        """Cancel the current query, if possible. Called from another thread."""
        ...

    def needs_replacement(self) -> bool:
        """Whether the worker should be replaced by a new process."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class DuckdbEngine:
    """DuckDB in this process, within a memory limit that the kernel enforces."""

    reader: StorageReader
    duck: Duck

    @classmethod
    def open(cls, reader: StorageReader, results: Mapping[str, str]) -> DuckdbEngine:
        pa.set_cpu_count(reader.settings.query_threads)
        pa.set_io_thread_count(_IO_THREADS)
        engine = cls(reader, Duck(reader.settings, results.get("spark.sql.session.timeZone", "UTC")))
        with suppress(DuckDeclined):  # each query reports the error again
            engine.duck.answer("SELECT count(*) FROM range(100000)", {}, [], 1)
        query_bytes = reader.settings.query_memory_bytes
        _limit_memory(_read_memory_bytes() + _SPARE_BYTES + query_bytes + query_bytes // _KEPT_SHARE)
        return engine

    def answer(self, question: Question) -> EngineAnswer:
        return answer_with_duckdb(pin_collections(self.reader), question, self.duck)

    def interrupt(self) -> None:
        self.duck.interrupt()

    def needs_replacement(self) -> bool:
        """Allocators do not return all memory, so a later query could have less than `query_memory_bytes`."""
        most, _ = resource.getrlimit(resource.RLIMIT_DATA)
        return most != resource.RLIM_INFINITY and most - _read_memory_bytes() < self.reader.settings.query_memory_bytes

    def close(self) -> None:
        self.reader.close()


class _QuestionQueue:
    """Queries from the pipe. A thread reads them, since an interrupt arrives while a query is being answered."""

    def __init__(self, at: int) -> None:
        self.engine: QueryEngine | None = None
        self.current = -1
        """The number of the current query."""
        self._at = at
        self._waiting: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        WatchedThread("evertide-questions", self._listen, on_death=lambda _: _kill_process_group()).start()

    def next(self, within_s: float) -> dict[str, Any] | None:
        """None if no query arrives within `within_s`."""
        try:
            fields = self._waiting.get(timeout=within_s).facts
        except queue.Empty:
            return None
        self.current = fields["number"]
        return fields

    def _listen(self) -> None:
        while (frame := read_frame(self._at)) is not None:
            if "interrupt" not in frame.facts:
                self._waiting.put(frame)
            elif self.engine is not None and frame.facts["interrupt"] == self.current:
                self.engine.interrupt()
        _kill_process_group()  # the server is gone


def _kill_process_group() -> None:
    """Kill this process and its children, since no further query can arrive."""
    os.killpg(0, signal.SIGKILL)


def answer_questions(start: Mapping[str, Any], isolation: Isolation, given: int, out: int) -> None:
    """`given` and `out` are the pipes from and to the server."""
    questions = _QuestionQueue(given)
    settings = Settings(**start["settings"])
    try:
        engine = _open_engine(start, settings)
    except EvertideError as error:
        write_frame(out, {"error": error_to_json(error)})
        return
    questions.engine = engine
    write_frame(out, {"is_ready": True, "isolation": asdict(isolation)})
    while (fields := questions.next(settings.query_idle_s)) is not None:
        if not _answer(engine, fields, out, settings):
            break
    engine.close()
    os._exit(0)  # without waiting for threads of libraries


def _open_engine(start: Mapping[str, Any], settings: Settings) -> QueryEngine:
    reader = StorageReader.open(start["location"], start["meta"], settings=settings)
    if start["engine"] == EngineChoice.duckdb:
        return DuckdbEngine.open(reader, start["results"])
    from evertide.server.query.spark_query import SparkQueryEngine  # noqa: PLC0415 - pyspark, which DuckDB does without

    return SparkQueryEngine.open(reader, start)


def _answer(engine: QueryEngine, fields: dict[str, Any], out: int, settings: Settings) -> bool:
    """Answer one query. False if the process should not be used for another."""
    number = fields.pop("number")
    write_frame(out, {"is_active": number})
    question = Question(**{**fields, "engine": EngineChoice(fields["engine"])})
    body: memoryview | bytes = b""
    try:
        given = engine.answer(question)
        body = _encode(given.rows, question.media, settings.query_bytes_max)
        facts: dict[str, Any] = {"time": given.time, "is_truncated": given.is_truncated, "stale": given.stale}
    except (MemoryError, pa.ArrowMemoryError):
        facts = {"error": error_to_json(make_memory_error(settings.query_memory_bytes))}
    except EvertideError as error:
        facts = {"error": error_to_json(error), "is_declined": isinstance(error, DuckDeclined)}
    except Exception as error:  # noqa: BLE001 - a bug; the process stays, because other queries use it
        bug = Unexpected(where="query", why=f"{type(error).__name__}: {error}")
        facts = {"error": error_to_json(bug), "traceback": traceback.format_exc()}
    is_last = engine.needs_replacement()
    write_frame(out, {"number": number, "is_last": is_last, **facts}, body)
    return not is_last


def _encode(rows: pa.Table, media: str, bytes_max: int) -> memoryview:
    if media == ARROW:  # without copies; the engine has checked the size
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return memoryview(sink.getvalue())
    body = bytearray()
    named = make_names_unique(rows)
    for block in encode_rows(media, named.schema, [named]):
        body += block
        if len(body) > bytes_max:
            raise make_size_error(bytes_max)
    return memoryview(body)


def _read_memory_bytes() -> int:
    """Private writable memory, which `RLIMIT_DATA` limits. 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


def _limit_memory(limit_bytes: int) -> None:
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
