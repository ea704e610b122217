"""A PostgreSQL for logical replication that tests may stop and restart, and helpers for its databases."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.postgres import BINARIES, INITDB, OPTIONS, START_LIMIT_S, _wait_for
from tests.servers.postgres_versions import binaries_of

SETTINGS = {
    **OPTIONS,
    "wal_level": "logical",
    "logical_decoding_work_mem": "64kB",
    "max_wal_senders": "30",
    "max_replication_slots": "30",
    "max_prepared_transactions": "5",
    "autovacuum": "off",
}
LOCKED = "locked"
"""A user that needs a password."""


class LogicalServer:
    def __init__(self, directory: Path, version: str = "") -> None:
        self.directory = directory
        self.binaries = binaries_of(version, directory / "installed") if version else BINARIES
        self.port = 5432
        self._owner: dict[str, Any] = {"cwd": directory}
        self._process: subprocess.Popen[bytes] | None = None
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
            self._owner |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        initdb: list[str | Path] = [self.binaries / "initdb", "-D", directory / "data", *INITDB]
        subprocess.run(initdb, check=True, capture_output=True, **self._owner)
        hba = directory / "data" / "pg_hba.conf"
        locked = [f"local all {LOCKED} scram-sha-256\n", f"host all {LOCKED} all scram-sha-256\n"]
        hba.write_text("".join([*locked, hba.read_text()]))

    def dsn(self, database: str = "postgres", user: str = "evertide") -> str:
        return f"postgresql://{user}@/{database}?host={self.directory}&port={self.port}"

    def start(self, **settings: str) -> None:
        options = [part for name, value in {**SETTINGS, **settings}.items() for part in ("-c", f"{name}={value}")]
        self.port = int(settings.get("port", self.port))
        with (self.directory / "log").open("ab") as log:
            command: list[str | Path] = [
                self.binaries / "postgres",
                "-D",
                self.directory / "data",
                "-k",
                self.directory,
            ]
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log, **self._owner)
        _wait_for(self.dsn(), self._process, self.directory / "log")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_LIMIT_S)
            self._process = None

    def pgbench(self, database: str, *arguments: str) -> subprocess.Popen[bytes]:
        command: list[str | Path] = [
            self.binaries / "pgbench",
            "-h",
            self.directory,
            "-U",
            "evertide",
            *arguments,
            database,
        ]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def running_logical(version: str = "", **settings: str) -> Iterator[LogicalServer]:
    """In the version that most tests use, or another one."""
    directory = Path(tempfile.mkdtemp(prefix="evertide-pg-"))
    try:
        server = LogicalServer(directory, version)
        server.start(**settings)
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(directory)


class Database:
    """A database for one test, and the name of a slot."""

    def __init__(self, server: LogicalServer, name: str) -> None:
        self.server = server
        self.name = name
        self.slot = name
        self.dsn = server.dsn(name)
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        self.connection: psycopg.Connection[Any] = psycopg.connect(self.dsn, autocommit=True)

    def reconnect(self) -> None:
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def value(self, query: str) -> Any:
        return self.rows(query)[0][0]

    def confirmed(self) -> str:
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return str(self.value(query))

    def cut(self) -> int:
        """End all connections of sources."""
        return int(
            self.value(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                f" WHERE datname = '{self.name}' AND pid <> pg_backend_pid()"
            )
        )

    def cut_others(self, spared: psycopg.Connection[Any]) -> None:
        """End all connections of sources but one."""
        self.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{self.name}' AND pid NOT IN (pg_backend_pid(), {spared.info.backend_pid})"
        )

    def close(self) -> None:
        self.connection.close()
        with psycopg.connect(self.server.dsn(), autocommit=True) as admin:
            active = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{self.name}'"
            admin.execute(active)
            slots = (
                f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{self.name}'"
            )
            admin.execute(slots)
            admin.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
