"""`PostgresMeta`: several processes, connections that break around a commit, and secrets that are never shown."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from evertide.errors import (
    EvertideError,
    InvalidInput,
    OutcomeUnknown,
    RecordDamaged,
    SetupIncomplete,
    StorageForbidden,
    Unavailable,
    UnsupportedFormat,
)
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import Guard, PostgresMeta, Record, Stale, Write
from evertide.store.retry import commit_until_known
from evertide.types import SequenceNumber
from tests.servers.postgres import PostgresServer
from tests.store.race import together

SECRET = "s3cret-pass"


@pytest.fixture
def schema(runtime: SystemRuntime) -> str:
    return f"test_{runtime.new_id()}"


@pytest.fixture
def admin(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def meta(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime, settings: Settings
) -> Iterator[PostgresMeta]:
    opened = PostgresMeta(named_url(postgres_server, schema), runtime, settings, schema)
    yield opened
    opened.close()


def named_url(server: PostgresServer, schema: str) -> str:
    """A URL whose sessions the server can tell from those of other tests."""
    return f"{server.dsn}&application_name={schema}"


def terminate(admin: psycopg.Connection, schema: str) -> int:
    sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s"
    row = admin.execute(sql, (schema,)).fetchone()
    assert row is not None
    return int(row[0])


def test_processes_that_create_the_table_at_the_same_time(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime, settings: Settings
) -> None:
    opened: list[PostgresMeta] = []

    def work(number: int) -> None:
        opened.append(PostgresMeta(postgres_server.dsn, runtime, settings, schema))
        assert opened[-1].commit([Write(f"k{number}", 0, b"1")]) is None

    assert together(6, work) == [None] * 6
    assert len(opened[0].heads("")) == 6
    for meta in opened:
        meta.close()


def test_several_objects_race_and_see_each_other(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime, settings: Settings, meta: PostgresMeta
) -> None:
    """As processes on several hosts do: they communicate only through the server."""
    others = [PostgresMeta(postgres_server.dsn, runtime, settings, schema) for _ in range(3)]
    wins: list[int] = []

    def work(number: int) -> None:
        for seqno in range(30):
            stale = others[number].commit([Write("k", seqno, b"%d" % number)], [Guard("absent", 0)])
            wins.extend([seqno] if stale is None else [])

    assert together(3, work) == [None] * 3
    assert sorted(wins) == list(range(30))
    assert meta.wait("k", 29, 60.0) is True
    assert len(meta.scan("k")) == 30
    for other in others:
        other.close()


def test_an_idle_connection_that_was_cut_is_replaced(
    meta: PostgresMeta, admin: psycopg.Connection, schema: str
) -> None:
    assert meta.commit([Write("k", 0, b"1")]) is None
    assert terminate(admin, schema) >= 1
    with pytest.raises(Unavailable):
        meta.commit([Write("k", 1, b"2")])
    assert meta.head("k") == Record(SequenceNumber(1), b"1")
    assert meta.commit([Write("k", 1, b"2")]) is None
    assert terminate(admin, schema) >= 1
    with pytest.raises(Unavailable):
        meta.head("k")
    assert meta.head("k") == Record(SequenceNumber(2), b"2")


def test_one_broken_connection_closes_the_idle_ones_too(
    meta: PostgresMeta, admin: psycopg.Connection, schema: str
) -> None:
    """After a restart of the server one call fails, not one per connection."""
    inside = threading.Barrier(4)

    def hold(_: int) -> None:
        with meta._pool.use():
            inside.wait()

    assert together(4, hold) == [None] * 4
    assert terminate(admin, schema) == 4
    with pytest.raises(Unavailable):
        meta.head("k")
    assert meta.head("k") is None


@pytest.mark.parametrize("sent", [False, True], ids=["before COMMIT was sent", "after COMMIT was sent"])
def test_a_connection_cut_around_commit_is_an_unknown_outcome(
    meta: PostgresMeta, admin: psycopg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """If the connection is cut before COMMIT reaches the server, the commit did not happen; if after, it did. The
    client cannot know which.
    """
    execute = psycopg.Connection.execute

    def cut(connection: psycopg.Connection, query: Any, *args: Any, **kwargs: Any) -> object:
        if query == "COMMIT":
            if sent:
                execute(connection, "COMMIT")
            terminate(admin, schema)
            return execute(connection, "SELECT 1")
        return execute(connection, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Connection, "execute", cut)
    monkeypatch.setattr(admin, "execute", lambda *args: execute(admin, *args))
    with pytest.raises(OutcomeUnknown):
        meta.commit([Write("k", 0, b"1"), Write("other", 0, b"1")])
    monkeypatch.undo()
    assert set(meta.heads("")) == ({"k", "other"} if sent else set())
    answer = meta.commit([Write("k", 0, b"1"), Write("other", 0, b"1")])
    assert answer == (Stale("k", 0, SequenceNumber(1)) if sent else None)


def test_connections_cut_at_random_lose_and_double_nothing(
    meta: PostgresMeta, admin: psycopg.Connection, schema: str, runtime: SystemRuntime, settings: Settings
) -> None:
    """A caller that settles unknown outcomes by reading back gets every record once, whenever connections break."""
    done: list[bool] = []

    def work(thread: int) -> None:
        if thread == 0:
            while len(done) < 2:
                terminate(admin, schema)
                runtime.sleep_s(0.003)
            return
        try:
            for number in range(60):
                data = f"{thread} {number}".encode()
                writes = [Write(f"log/{thread}", number, data), Write(f"copy/{thread}", number, data)]
                assert commit_until_known(meta, writes, [], runtime, settings) is None
        finally:
            done.append(True)

    assert together(3, work) == [None] * 3
    runtime.sleep_s(0.01)
    meta._pool.drop_idle()
    for thread in (1, 2):
        expected = [Record(SequenceNumber(number + 1), f"{thread} {number}".encode()) for number in range(60)]
        assert meta.scan(f"log/{thread}") == expected
        assert meta.scan(f"copy/{thread}") == expected


def test_synchronous_commit_does_not_depend_on_the_servers_default(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime, settings: Settings
) -> None:
    seen: list[object] = []

    class Watched(PostgresMeta):
        def _commit(self, connection: psycopg.Connection, *args: object) -> Stale | None:
            names = (b"synchronous_commit", b"transaction_isolation", b"lock_timeout")
            seen.extend(connection.execute(b"SHOW " + name).fetchone() for name in names)
            return super()._commit(connection, *args)  # type: ignore[arg-type]

    careless = "-c synchronous_commit=off -c default_transaction_isolation=serializable"
    with psycopg.connect(postgres_server.dsn, options=careless) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    dsn = f"{postgres_server.dsn}&options={quote(careless)}"
    meta = Watched(dsn, runtime, settings, schema)
    assert meta.commit([Write("k", 0, b"1")]) is None
    meta.close()
    assert seen == [("on",), ("read committed",), ("20s",)]


def test_a_lock_that_is_never_released_ends_as_unavailable(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime, meta: PostgresMeta
) -> None:
    impatient = PostgresMeta(postgres_server.dsn, runtime, Settings(retry_limit_s=0.05), schema)

    class Held(Exception):
        pass

    def hold(connection: psycopg.Connection) -> None:
        meta._commit(connection, [Write("k", 0, b"1")], [])
        with pytest.raises(Unavailable, match="lock timeout"):
            impatient.commit([Write("k", 0, b"1")])
        assert impatient.commit([Write("free", 0, b"1")]) is None
        raise Held

    with pytest.raises(Held):
        meta._write(hold)
    assert impatient.commit([Write("k", 0, b"1")]) is None
    impatient.close()


def test_guards_of_the_same_key_do_not_wait_for_each_other(meta: PostgresMeta, admin: psycopg.Connection) -> None:
    locks = meta._locks([Guard("a", 0), Write("b", 0, b""), Guard("b", 0), Guard("c", 0)])
    assert list(locks) == sorted(locks)
    assert sorted(locks.values()) == [False, False, True]


def test_a_newer_version_is_refused(
    meta: PostgresMeta, admin: psycopg.Connection, schema: str, postgres_server: PostgresServer, runtime: SystemRuntime
) -> None:
    admin.execute(f"UPDATE {schema}.format SET version = 7".encode())
    with pytest.raises(UnsupportedFormat) as caught:
        PostgresMeta(postgres_server.dsn, runtime, Settings(), schema)
    assert (caught.value.found, caught.value.supported) == (7, 1)


def test_a_missing_table_is_damage(meta: PostgresMeta, admin: psycopg.Connection, schema: str) -> None:
    admin.execute(f"DROP TABLE {schema}.log".encode())
    with pytest.raises(RecordDamaged):
        meta.head("k")
    with pytest.raises(RecordDamaged):
        meta.commit([Write("k", 0, b"1")])


def test_a_role_that_may_only_use_the_table(
    meta: PostgresMeta, admin: psycopg.Connection, schema: str, postgres_server: PostgresServer, runtime: SystemRuntime
) -> None:
    role = f"role_{schema}"
    admin.execute(f"CREATE ROLE {role} LOGIN".encode())
    dsn = postgres_server.dsn.replace("evertide@", f"{role}@")
    with pytest.raises(StorageForbidden):
        PostgresMeta(dsn, runtime, Settings(), f"{schema}_new")
    admin.execute(
        f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode()
    )
    reader = PostgresMeta(dsn, runtime, Settings(), schema)
    assert reader.head("k") is None
    with pytest.raises(StorageForbidden):
        reader.commit([Write("k", 0, b"1")])
    reader.close()


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/db",
        f"host=127.0.0.1 port=1 user=user password={SECRET} dbname=db",
        f"postgresql://user:{SECRET}@127.0.0.1:1/db?nonsense=1",
        f"postgresql://user:{SECRET}@host:port:port/db",
        f"password={SECRET} and so on",
    ],
)
def test_the_password_is_never_shown(dsn: str, runtime: SystemRuntime, settings: Settings) -> None:
    with pytest.raises((Unavailable, InvalidInput)) as caught:
        PostgresMeta(dsn, runtime, settings)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        assert isinstance(error, EvertideError)
        error = None if error.__suppress_context__ else error.__context__


def test_paths_name_the_server_and_not_the_password(
    postgres_server: PostgresServer, schema: str, runtime: SystemRuntime, settings: Settings
) -> None:
    dsn = postgres_server.dsn.replace("evertide@", f"evertide:{SECRET}@")
    meta = PostgresMeta(dsn, runtime, settings, schema)
    assert meta.path("shard/s").startswith("postgresql://evertide@")
    assert meta.path("shard/s").endswith(f"{schema}.log:shard/s")
    assert SECRET not in meta.path("shard/s") + repr(meta)
    meta.close()


@pytest.mark.parametrize("schema", ["", "Upper", "a b", 'a"b', "a;b", "x" * 64])
def test_names_of_schemas_are_checked(schema: str, runtime: SystemRuntime, settings: Settings) -> None:
    with pytest.raises(InvalidInput):
        PostgresMeta("postgresql://localhost/db", runtime, settings, schema)


def test_without_psycopg(runtime: SystemRuntime, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SetupIncomplete, match=r"'psycopg' is missing: pip install 'evertide\[postgres\]'"):
        PostgresMeta("postgresql://localhost/db", runtime, settings)


def test_a_psycopg_that_cannot_be_loaded(
    tmp_path: Path, runtime: SystemRuntime, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package without its extra `binary` raises this on a machine without libpq."""
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper available.\\nlibpq library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "psycopg", raising=False)
    with pytest.raises(
        SetupIncomplete, match=r"no pq wrapper available. libpq library not found\): pip install 'evertide\[postgres\]'"
    ):
        PostgresMeta("postgresql://localhost/db", runtime, settings)


def test_importing_the_store_imports_neither_client() -> None:
    code = "import sys, evertide.store; print(sorted({'obstore', 'psycopg', 'pyspark', 'pyarrow'} & set(sys.modules)))"
    root = Path(__file__).parent.parent.parent
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout.strip() == "[]"
