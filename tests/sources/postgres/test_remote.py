"""A server that is reached over the network: TCP, a password, TLS with a verified certificate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import psycopg
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.engine import DeclaredTable
from tests.servers.tls import Certificate, free_port, make_certificate, tls_front
from tests.sources.postgres.kit import ORDERS, ORDERS_SQL, Feeding
from tests.sources.postgres.server import LOCKED, Database, LogicalServer, running_logical

PASSWORD = "correct horse/battery:staple@7"


@pytest.fixture(scope="module")
def far_server() -> Iterator[LogicalServer]:
    with running_logical(listen_addresses="127.0.0.1", port=str(free_port())) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE USER {LOCKED} SUPERUSER PASSWORD '{PASSWORD}'")
        yield server


@pytest.fixture
def far(far_server: LogicalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("EVERTIDE_TEST_PG", PASSWORD)
    database = Database(far_server, "far")
    database.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    yield database
    database.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    made = make_certificate(tmp_path_factory.mktemp("tls"), "localhost")
    if made is None:
        pytest.skip("there is no openssl, which creates the certificate")
    return made


def orders(port: int, **options: str) -> DeclaredTable:
    given = {
        "host": "localhost",
        "port": str(port),
        "dbname": "far",
        "user": LOCKED,
        "password": "${ENV:EVERTIDE_TEST_PG}",
        "slot": "far",
        "idle_interval": "0.3",
        **options,
    }
    return DeclaredTable("orders", ORDERS, ("id",), "postgres", given, where="shop.sql:1")


def check_flows(far: Database, declared: DeclaredTable) -> None:
    """Initial content, changes, and a cut connection."""
    with Feeding(far, declared) as f:
        f.until_equal()
        far.run("INSERT INTO orders VALUES (2, 'b', 2)", "DELETE FROM orders WHERE id = 1")
        f.until_equal()
        far.cut()
        far.run("INSERT INTO orders VALUES (3, 'c', 3)")
        f.until_equal()
        f.until(lambda: f.source_status.lag is not None and f.source_status.lag.bytes == 0)
        assert PASSWORD not in repr(astuple(f.pipeline.status()))


def check_refused(far: Database, declared: DeclaredTable, *words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Feeding(far, declared)
    for word in words:
        assert word in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert far.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'far'") == []


def test_the_source_reads_over_tcp_with_a_password(far: Database) -> None:
    check_flows(far, orders(far.server.port))


def test_a_wrong_password_is_refused_before_the_start_and_not_shown(
    far: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wrong-" + PASSWORD
    monkeypatch.setenv("EVERTIDE_TEST_PG", wrong)
    check_refused(far, orders(far.server.port), "password authentication failed")
    monkeypatch.setenv("EVERTIDE_TEST_PG", PASSWORD)
    given = {**orders(far.server.port).options, "url": f"postgresql://{LOCKED}:wrong-one@localhost/far"}
    del given["password"]
    check_refused(far, DeclaredTable("orders", ORDERS, ("id",), "postgres", given, where="shop.sql:1"), "password")
    assert PASSWORD not in caplog.text
    assert "wrong-" not in caplog.text


def test_the_source_reads_over_tls_with_a_verified_certificate(far: Database, certificate: Certificate) -> None:
    with tls_front(far.server.port, certificate) as port:
        check_flows(far, orders(port, sslmode="verify-full", sslrootcert=str(certificate.certificate)))


@pytest.mark.parametrize("host", ["localhost", "elsewhere.example"])
def test_a_certificate_of_another_server_is_refused(
    far: Database, certificate: Certificate, tmp_path: Path, host: str
) -> None:
    """Not trusted, or of another name: the server is reachable, and waiting would not help."""
    other = make_certificate(tmp_path, host)
    assert other is not None
    trusted = certificate if host == "localhost" else other
    with tls_front(far.server.port, other) as port:
        options = {"sslmode": "verify-full", "sslrootcert": str(trusted.certificate)}
        check_refused(far, orders(port, **options), "certificate")


def test_a_server_without_tls_is_refused_if_tls_is_required(far: Database) -> None:
    check_refused(far, orders(far.server.port, sslmode="require"), "does not support SSL")
