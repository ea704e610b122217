"""Worker processes: their limits, their end, and the errors about them. With DuckDB; the differences of Spark are in
`test_query_spark`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, LimitExceeded
from evertide.media import FORMATS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.runtime import SystemRuntime
from evertide.server.app import make_app
from evertide.server.endpoints import formats
from evertide.server.endpoints.formats import ROW_FORMATS
from evertide.server.query.answering import _answer
from evertide.server.query.wire import read_frame
from evertide.server.query.worker_process import EngineOptions, Worker, list_processes, measure_disk_bytes
from evertide.server.query.workers import Workers
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.store.open import StorageAddress
from tests.pipeline.kit import open_pipeline
from tests.server.kit import Answer, Client, limited, order, shop, stored, until

ROWS = "/v1/tables/orders/rows"
MODULE = "evertide.server.query.worker"
LONG = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"
"""One call that takes hours, and in which DuckDB does not check for interruption."""
SETTINGS = Settings(query_limit_s=60, query_memory_bytes=64 * 1024 * 1024, query_bytes_max=100_000)


@dataclass(frozen=True)
class Served:
    pipeline: Pipeline
    client: Client

    def ask(self, sql: str, **more: Any) -> Answer:
        return self.client.post("/v1/query?format=csv", {"sql": sql, **more})

    def is_answered(self) -> bool:
        raw = self.client.raw("POST", "/v1/query", b'{"sql": "SELECT 1"}', {"Content-Type": "application/json"})
        return raw.status == 200


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with shop(stored(tmp_path_factory.mktemp("workers")), SETTINGS) as (pipeline, client):
        client.post(ROWS, [order(1)])
        served = Served(pipeline, client)
        assert served.is_answered()
        yield served


def workers() -> list[int]:
    """Return the workers of this process."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                is_one = MODULE in (place / "cmdline").read_text().split("\0")
            except (OSError, IndexError, ValueError):
                continue
            if parent == os.getpid() and is_one:
                found.append(int(place.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def committing(client: Client) -> Iterator[list[int]]:
    """Commit transactions one after the other during the block; return their number."""
    is_over, times = threading.Event(), [0]

    def pushing() -> None:
        while not is_over.is_set():
            answer = client.post(ROWS, [order(2, "bob", times[-1])])
            assert answer.status == 200
            times.append(answer.body["time"])

    with ThreadPoolExecutor(1) as threads:
        pushed = threads.submit(pushing)
        try:
            yield times
        finally:
            is_over.set()
            pushed.result()


@pytest.mark.parametrize(
    ("sql", "limit_s", "why"),
    [
        ("SELECT len(range(4000000000))", 60, "memory"),
        ("SELECT len(repeat('x', 2147483647))", 60, "memory"),
        ("SELECT sum(len(repeat('x', 100000000 + range))) FROM range(100)", 60, "memory"),
        ("SELECT list_resize([1], 1000000000)", 60, "memory"),
        (
            "SELECT count(*) FROM (SELECT DISTINCT range, hash(range), repeat('x', 90) FROM range(9000000))",
            60,
            "memory",
        ),
        (LONG, 0.3, "0.3 s"),
        ("SELECT count(*) FROM range(100000000000) a, range(100000) b WHERE a.range % 7 = b.range % 5", 0.3, "0.3 s"),
        ("SELECT repeat('x', 1000) FROM range(1000)", 60, "larger than 100000 bytes"),
        (f"SELECT {{'{'x' * 1000}': true}} FROM range(1000)", 60, "larger than 100000 bytes"),
        (f"SELECT '{'x' * 1000}'::ENUM('{'x' * 1000}') FROM range(1000)", 60, "larger than 100000 bytes"),
    ],
)
def test_a_query_beyond_its_limits_is_ended_and_disturbs_nothing(
    here: Served, sql: str, limit_s: float, why: str
) -> None:
    """Fails without the kernel's limit: one call takes gigabytes. Without the kill, no query gets an answer for hours;
    without the interruption, each of these queries costs a process. The last two are small as Arrow, and large as
    CSV."""
    with committing(here.client) as times, limited(here.pipeline, limit_s):
        answer = here.ask(sql)
        assert (answer.status, answer.body["error_code"]) == (422, "limit_exceeded"), answer.body
        assert why in answer.body["why"]
        before = len(times)
        until(lambda: len(times) > before + 2)
    assert here.is_answered()


@pytest.mark.parametrize("form", [name for name, media in FORMATS.items() if media in ROW_FORMATS])
def test_the_server_does_not_decode_the_rows_of_an_answer(
    here: Served, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As Python values, a list of a million structs takes a thousand times the memory of its Arrow form. Fails if the
    server encodes the answer."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the server decodes rows")

    monkeypatch.setattr(formats, "to_json_rows", refuse)
    monkeypatch.setattr(pa.ipc, "open_stream", refuse)
    sql = b'{"sql": "SELECT [{a: true}] AS x, 1 AS x", "engine": "duckdb"}'
    raw = here.client.raw("POST", f"/v1/query?format={form}", sql, {"Content-Type": "application/json"})
    assert raw.status == 200, raw.content


def test_a_query_that_can_be_interrupted_costs_no_process(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the worker is killed at once: the next query would wait for another process to start."""
    [before] = workers()
    monkeypatch.setattr("evertide.server.query.worker_process._GRACE_S", 60.0)  # a machine may be slow
    with limited(here.pipeline, 0.3):
        assert here.ask("SELECT count(*) FROM range(100000000000) a, range(100000) b").status == 422
    assert workers() == [before]
    monkeypatch.undo()
    with limited(here.pipeline, 0.3):
        assert here.ask(LONG).status == 422
    assert workers() == []
    assert here.is_answered()


def test_a_killed_worker_is_reported_and_replaced(here: Served) -> None:
    """During a query, and between two. Fails if the end of the pipe is not noticed: a request gets no answer, or is
    sent to a dead worker."""
    [pid] = workers()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(here.ask, LONG)
        until(lambda: _is_busy(pid))
        os.kill(pid, signal.SIGKILL)
        answer = asked.result()
    assert (answer.status, answer.body["error_code"], answer.body["why"]) == (503, "query_ended", "signal SIGKILL")
    assert here.is_answered()
    [pid] = workers()
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid))
    assert here.is_answered()


def _is_busy(pid: int) -> bool:
    """Whether the worker has computed for a while since it was ready."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    known = _BUSY.setdefault(pid, int(fields[11]))
    return int(fields[11]) > known + 5


_BUSY: dict[int, int] = {}

PARENT = """
import sys, threading
from pathlib import Path
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.runtime import SystemRuntime
from evertide.server.query.wire import read_frame
from evertide.server.query.workers import Workers
from evertide.settings import Settings
from evertide.store.open import StorageAddress

workers = Workers(StorageAddress(sys.argv[1]), dict, settings=Settings(query_limit_s=600), runtime=SystemRuntime())
workers.ask_duckdb(Question("SELECT 1", engine=EngineChoice.duckdb))
print(*[one.pid for one in workers._free], flush=True)
workers.ask_duckdb(Question(sys.argv[2], engine=EngineChoice.duckdb))
"""


def test_no_worker_is_left_when_its_server_is_killed(here: Served) -> None:
    """Also one that cannot react, as if a call held the interpreter. Fails if the kernel is not asked to kill it."""
    root = here.pipeline.storage.root
    with subprocess.Popen([sys.executable, "-c", PARENT, root, LONG], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: _is_busy(pid))
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        until(lambda: is_gone(pid))


def test_workers_end_with_the_server_and_when_idle(tmp_path: Path) -> None:
    """Fails if `close` does not end them, or if an idle worker stays for ever."""
    others = workers()
    settings = Settings(query_idle_s=0.2, retry_limit_s=0.5)
    with shop(stored(tmp_path), settings) as (pipeline, client):
        here = Served(pipeline, client)
        assert here.is_answered()
        until(lambda: workers() == others)
        object.__setattr__(settings, "query_idle_s", 600)
        assert here.is_answered()
        [own] = {*workers()} - {*others}
    assert is_gone(own)


def test_a_running_query_fails_when_the_server_stops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fails if the server waits for the query: half a minute, and then the request is cancelled with a trace."""
    others = workers()
    settings = Settings(query_limit_s=1000, retry_limit_s=0.5)
    with ThreadPoolExecutor(2) as threads, open_pipeline(stored(tmp_path), settings=settings) as pipeline:
        server = Server().start(make_app(pipeline))
        here = Served(pipeline, Client(server.host, server.port))
        assert here.is_answered()
        [own] = {*workers()} - {*others}
        asked = threads.submit(here.ask, LONG)
        until(lambda: _is_busy(own))
        server.stop()
        answer = asked.result()
    assert (answer.status, answer.body["error_code"]) == (503, "query_ended")
    assert is_gone(own)
    assert "Traceback" not in caplog.text


def test_the_input_of_a_worker_is_not_visible_to_other_processes(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's command line and environment hold no address, setting or secret. Fails if it inherits the
    environment, or gets the storage as an argument."""
    for name in ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "EVERTIDE_TOKEN", "SHOP_SECRET"):
        monkeypatch.setenv(name, "hidden-0123456789")
    with _workers(here) as own:
        own.ask(Question("SELECT 1", engine=EngineChoice.duckdb))
        [pid] = [one.pid for one in own._free]
        place = Path("/proc") / str(pid)
        assert (place / "cmdline").read_text().rstrip("\0").split("\0")[1:] == ["-P", "-m", MODULE]
        environment = (place / "environ").read_text()
        assert "hidden" not in environment
        assert here.pipeline.storage.root not in environment
        assert (place / "oom_score_adj").read_text().strip() == "1000", (
            "the kernel kills the worker first if memory is short"
        )


def test_queries_use_the_time_zone_of_the_pipeline(here: Served) -> None:
    """Fails if DuckDB uses UTC: an answer would change when a table grows and Spark answers."""
    sql = "SELECT hour(TIMESTAMPTZ '1970-01-01 00:00:00+00') AS h, TIMESTAMPTZ '1970-01-01 00:00:00+00' AS t"
    with _workers(here, "America/New_York") as own:
        rows = own.ask(Question(sql, engine=EngineChoice.duckdb)).rows
    assert rows.column("h").to_pylist() == [19]
    assert str(rows.schema.field("t").type) == "timestamp[us, tz=UTC]"
    with _workers(here, "Nowhere/Land") as own, pytest.raises(InvalidInput, match="Nowhere/Land"):
        own.ask(Question("SELECT 1", engine=EngineChoice.duckdb))


def _workers(here: Served, zone: str = "UTC") -> Workers:
    return Workers(
        here.pipeline.storage.address,
        lambda: {"spark.sql.session.timeZone": zone},
        settings=SETTINGS,
        runtime=SystemRuntime(),
        has_spark=False,
    )


def test_memory_and_disk_of_all_worker_processes_are_limited(here: Served, tmp_path: Path) -> None:
    """Also of Spark, which the kernel does not limit. Fails if usage is not checked during the query."""
    address = here.pipeline.storage.address
    assert isinstance(address, StorageAddress)
    for memory, spill, why in [
        (1, 1 << 40, "use more than 1 bytes of memory"),
        (1 << 40, 1, "more than 1 bytes to disk"),
    ]:
        settings = Settings(query_spill_bytes=spill, query_limit_s=600)
        worker = Worker(EngineOptions(EngineChoice.duckdb, address, {}, memory_bytes=memory), settings, SystemRuntime())
        (worker._scratch / "spilled").write_bytes(b"x" * 10_000)
        pid = worker.pid
        assert list_processes(pid) == [pid]
        with pytest.raises(LimitExceeded, match=why):
            worker.ask(Question(LONG, engine=EngineChoice.duckdb))
        assert worker.is_over
        assert is_gone(pid)
        assert not worker._scratch.exists()
    assert measure_disk_bytes(tmp_path / "nothing") == 0


def test_a_missing_storage_is_reported(tmp_path: Path) -> None:
    """The worker reports it, and creates nothing there."""
    with Workers(StorageAddress(str(tmp_path / "s")), dict, settings=SETTINGS, runtime=SystemRuntime()) as own:
        with pytest.raises(InvalidInput, match="the directory does not exist"):
            own.ask(Question("SELECT 1"))
        assert not [*own._free, *own._busy]
    assert not (tmp_path / "s").exists()


def test_the_rows_that_duckdb_reads_are_limited(tmp_path: Path) -> None:
    """Fails if the rows are not counted first: all would be read into memory, for a LIMIT 1."""
    with shop(stored(tmp_path), settings=Settings(query_read_rows_max=2)) as (_, client):
        for rows, status in [([order(1), order(2)], 200), ([order(3)], 422)]:
            client.post(ROWS, rows)
            answer = client.post("/v1/query", {"sql": "SELECT * FROM orders LIMIT 1"})
            assert answer.status == status
        assert answer.body["error_code"] == "limit_exceeded"
        assert "'orders'" in answer.body["why"]


class Faulty:
    """An engine with a bug."""

    def answer(self, question: Question) -> Any:
        raise KeyError(question.sql)

    def interrupt(self) -> None: ...

    def needs_replacement(self) -> bool:
        return False

    def close(self) -> None: ...


def test_a_bug_in_an_engine_is_answered_and_the_process_continues() -> None:
    """Fails if only expected errors are answered: the process would end, and the next query would wait for another."""
    given, out = os.pipe()
    asked = {"number": 1, "sql": "SELECT 1", "as_of": None, "engine": "duckdb", "limit": None, "parameters": []}
    assert _answer(Faulty(), asked, out, Settings())
    assert read_frame(given) is not None
    frame = read_frame(given)
    os.close(given)
    os.close(out)
    assert frame is not None
    assert (frame.facts["error"]["error_code"], frame.facts["is_last"]) == ("unexpected", False)
    assert "KeyError: 'SELECT 1'" in frame.facts["traceback"]
