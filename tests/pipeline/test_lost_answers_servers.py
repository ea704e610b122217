"""X6 with real servers: PostgreSQL commits without answering, and S3 answers 503, for longer than a call is retried."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from evertide.errors import EvertideError
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.metrics.kit import wait_for
from tests.pipeline.kit import SETTINGS, Row, engine, open_pipeline, rows_of
from tests.pipeline.test_replica_processes import database
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import CuttingProxy, cutting_proxy
from tests.servers.s3 import S3Server

QUICK = replace(SETTINGS, inline_bytes_max=1, retry_limit_s=0.1, checkpoint_interval_s=1e9)
"""Tests make the checkpoints: one of the loop would receive the fault that is meant for a transaction, and
would report it in another way."""
_SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextmanager
def running(storage: str, meta: str) -> Iterator[Pipeline]:
    """Run the pipeline in a thread that no error may end."""
    runtime, errors = SystemRuntime(), list[EvertideError]()
    p = open_pipeline(open_storage(storage, meta, runtime=runtime, settings=QUICK), engine(), settings=QUICK)

    def run() -> None:
        try:
            p.run()
        except EvertideError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield p
        assert errors == []
    finally:
        p.stop()
        thread.join()
        p.close()


def row(number: int) -> Row:
    return {"id": number, "customer": "ann", "amount": number}


def push(p: Pipeline, number: int) -> None:
    """Push a row, and leave the transaction to the loop."""
    pushed = p.transaction()
    pushed.push("orders", [row(number)])
    pushed.push("notes", [{"text": f"n{number}"}])
    p._pushes.offer_pushed(pushed)


def check(p: Pipeline, count: int) -> None:
    wait_for(lambda: p.time == count)
    wait_for(lambda: p._process_state.find_worst().state == "running")  # the next fault is not reported yet
    assert p.checkpoint().time == count + 1
    assert rows_of(p, "notes") == sorted((f"n{number}",) for number in range(count))
    assert rows_of(p, "revenue") == [("ann", sum(range(count)))]


@contextmanager
def noting_stalls(p: Pipeline) -> Iterator[list[str]]:
    """Collect the codes of the errors that stall the pipeline. In the status, each soon replaces the one before."""
    codes = list[str]()
    note_stall = p._input_reader.note_stall

    def note(name: str, error: EvertideError) -> None:
        note_stall(name, error)
        codes.append(error.error_code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(p._input_reader, "note_stall", note)
        yield codes


@pytest.mark.timeout(120)
def test_x6_rows_are_bound_once_if_postgresql_commits_without_answering(
    postgres_server: PostgresServer, tmp_path: object
) -> None:
    """The first COMMIT after a push is its bind, the second that of its shards."""
    directory = postgres_server.dsn.partition("host=")[2]
    with database(postgres_server) as (_, name, _), cutting_proxy(directory, 5432) as proxy:
        meta = f"postgresql://evertide@127.0.0.1:{proxy.port}/{name}"
        with running(f"{tmp_path}/s", meta) as p:
            for number in range(4):
                push_disturbed(p, proxy, number)
                check(p, number + 1)


def push_disturbed(p: Pipeline, proxy: CuttingProxy, number: int) -> None:
    with noting_stalls(p) as codes:
        with p._turn:  # otherwise the loop would commit the push first
            push(p, number)
            proxy.losing_after = (b"COMMIT\x00", number % 2)
        wait_for(lambda: bool(codes))
        assert codes[0] == "outcome_unknown"  # after that, PostgreSQL is away
        proxy.back()


@pytest.mark.timeout(120)
def test_x6_the_pipeline_continues_after_s3_answers_503(
    postgres_server: PostgresServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = s3_server.endpoint.removeprefix("http://").split(":")
    with database(postgres_server) as (_, name, meta), cutting_proxy(host, int(port)) as proxy:
        for variable, value in s3_server.environment(f"http://127.0.0.1:{proxy.port}").items():
            monkeypatch.setenv(variable, value)
        with running(f"s3://{s3_server.bucket}/{name}", meta) as p:
            for number in range(2):
                with noting_stalls(p) as codes:
                    with p._turn:
                        push(p, number)
                        proxy.answer = (b"PUT ", _SLOW_DOWN)
                    wait_for(lambda codes=codes: "outcome_unknown" in codes)  # type: ignore[misc]
                    proxy.back()
                check(p, number + 1)
