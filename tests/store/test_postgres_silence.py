"""`PostgresMeta` behind a proxy that stops forwarding without closing: no call hangs, and no lock remains."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from evertide.errors import EvertideError, OutcomeUnknown, Unavailable
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import PostgresMeta, Record, Write
from evertide.store.retry import commit_until_known
from evertide.types import SequenceNumber
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import CuttingProxy, cutting_proxy

QUICK = Settings(retry_limit_s=0.3, retry_wait_s=0.01, retry_wait_max_s=0.05, postgres_silence_s=0.5)
PATIENT = Settings(retry_limit_s=60.0, retry_wait_s=0.01, retry_wait_max_s=0.05)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CuttingProxy]:
    with cutting_proxy(postgres_server.dsn.partition("host=")[2], 5432) as made:
        yield made


@pytest.fixture
def schema(runtime: SystemRuntime) -> str:
    return f"test_{runtime.new_id()}"


@pytest.fixture
def meta(proxy: CuttingProxy, schema: str, runtime: SystemRuntime) -> Iterator[PostgresMeta]:
    dsn = f"postgresql://evertide@127.0.0.1:{proxy.port}/postgres?connect_timeout=2"
    opened = PostgresMeta(dsn, runtime, QUICK, schema)
    assert opened.commit([Write("k", 0, b"1")]) is None
    yield opened
    proxy.speaks.set()
    opened.close()


def catch_error(call: object) -> EvertideError:
    """The error of a call. It runs in a thread, so that a call that hangs fails the test instead of hanging it."""
    caught: list[EvertideError] = []

    def run() -> None:
        try:
            call()  # type: ignore[operator]
        except EvertideError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the call hangs"
    return caught[0]


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (b"BEGIN", Unavailable),
        (b"pg_advisory_xact_lock", Unavailable),
        (b"INSERT", Unavailable),
        (b"COMMIT\x00", OutcomeUnknown),
    ],
)
def test_a_commit_whose_server_falls_silent_ends(  # noqa: PLR0917
    meta: PostgresMeta,
    proxy: CuttingProxy,
    postgres_server: PostgresServer,
    schema: str,
    runtime: SystemRuntime,
    sign: bytes,
    expected: type[EvertideError],
) -> None:
    """Without limits the call hung, and the locks of its keys remained, so that no other process could commit
    to them.
    """
    proxy.silent_after = sign
    assert type(catch_error(lambda: meta.commit([Write("k", 1, b"2")]))) is expected
    other = PostgresMeta(postgres_server.dsn, runtime, QUICK, schema)
    assert commit_until_known(other, [Write("k", 1, b"other")], [], runtime, PATIENT) is None
    proxy.speaks.set()
    assert meta.head("k") == Record(SequenceNumber(2), b"other")
    other.close()


def test_a_read_whose_server_falls_silent_ends(meta: PostgresMeta, proxy: CuttingProxy) -> None:
    proxy.silent_after = b"SELECT"
    assert "did not answer for 0.8 s" in str(catch_error(lambda: meta.head("k")))
    assert type(catch_error(lambda: meta.head("k"))) is Unavailable, "no connection can be made"
    proxy.speaks.set()
    assert meta.head("k") == Record(SequenceNumber(1), b"1")


def test_an_answer_that_takes_long_is_waited_for(meta: PostgresMeta) -> None:
    """Only silence is limited, not duration: rows arrive all the time."""
    for number in range(1, 40):
        assert meta.commit([Write("k", number, bytes(1000))]) is None
    assert len(meta.scan("k")) == 40


def test_the_url_overrides_the_limits_of_the_network(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime
) -> None:
    for given, expected in (("", "30000"), ("&tcp_user_timeout=5000", "5000")):
        meta = PostgresMeta(postgres_server.dsn + given, runtime, QUICK, schema)
        with meta._pool.use() as connection:
            found = psycopg.conninfo.conninfo_to_dict(connection.info.dsn)
        assert found["tcp_user_timeout"] == expected
        meta.close()
