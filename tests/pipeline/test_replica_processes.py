"""U1-U4, J10, C9 with real processes: replicas are killed and paused under load, and no row is lost or doubled."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest

from evertide.pipeline.records.ownership import ProcessRole
from evertide.runtime import SystemRuntime
from evertide.sources.generated.seeded import RandomStream
from evertide.store.process_identity import Origin, this_process
from tests.pipeline.kit import rows_of
from tests.pipeline.replica import open_replica
from tests.pipeline.worker import SMALL
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import cutting_proxy
from tests.servers.s3 import S3Server

ROOT = Path(__file__).parents[2]
RUNTIME = SystemRuntime()
LIMIT_S = 120.0


class Replica:
    """One process, and its last line of output."""

    def __init__(self, place: Path, storage: str = "", meta: str = "", faults: float = 0.0) -> None:
        given = [storage or str(place / "s"), "replica", str(place / "log"), meta, str(faults)]
        command = [sys.executable, "-m", "tests.pipeline.replica", *given]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.time, self.said = -1, ""
        self.error = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break
            if line.startswith("error"):
                self.error = line.strip()
            else:
                time, self.said = line.split()
                assert int(time) >= self.time, "the replica's upper decreased"
                self.time = int(time)

    @property
    def leads(self) -> bool:
        return self.said == "leads"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def replicas(count: int, start: Callable[[], Replica]) -> Iterator[list[Replica]]:
    several: list[Replica] = []
    try:
        several += [start() for _ in range(count)]
        yield several
    finally:
        for one in several:
            one.end()


def wait_until(holds: Callable[[], Any], several: list[Replica]) -> None:
    end_s = RUNTIME.monotonic_s() + LIMIT_S
    while not holds():
        assert RUNTIME.monotonic_s() < end_s, [(one.time, one.said, one.error) for one in several]
        RUNTIME.sleep_s(0.02)


def check(place: Path, at_least: int, meta: str | None = None, storage: str = "") -> None:
    """Check that views equal plain Python over the tables, and that the sink received each transaction once and ends
    with the view."""
    with open_replica(storage or str(place / "s"), ProcessRole.REPLICA, place / "log", meta) as p:
        while not p.leads:
            p.advance()
        assert p.time >= at_least
        while not p._leader_tasks.has_delivered(p.time):
            RUNTIME.sleep_s(0.05)
        time = p.time
        tables = {name: p.view(name).as_of(time).to_pylist() for name in ("north", "south")}
        for name in ("both", "total"):
            expected = sorted((tuple(row.values()) for row in SMALL[name].function(tables)), key=repr)
            assert rows_of(p, name) == expected
        expected_total = Counter(tuple(row.values()) for row in SMALL["total"].function(tables))
    found: Counter[tuple[Any, ...]] = Counter()
    numbers = []
    for path in sorted((place / "log").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found[tuple(row[column] for column in ("amount", "rows"))] += row["__diff"]
            assert row["__time"] == int(path.stem)
        numbers.append(int(path.stem))
    assert numbers == sorted(set(numbers))
    assert +found == expected_total
    assert not -found


def kill_repeatedly(start: Callable[[], Replica], rounds: int, seed: int) -> int:
    """Kill a random replica in each round while the other continues, and restart it; return how far they came."""
    chance = RandomStream(seed)
    with replicas(2, start) as several:
        wait_until(lambda: any(one.leads for one in several) and all(one.time >= 2 for one in several), several)
        for _ in range(rounds):
            at = chance.below(2)
            victim, other = several[at], several[1 - at]
            RUNTIME.sleep_s(chance.below(100) / 200)
            victim.end()
            before = other.time
            wait_until(lambda other=other, before=before: other.leads and other.time > before + 3, several)  # type: ignore[misc]
            several[at] = start()
            wait_until(lambda at=at: several[at].time >= 0, several)  # type: ignore[misc]
        assert not any(one.error for one in several)
        return max(one.time for one in several)


@pytest.mark.timeout(300)
def test_u1_two_replicas_stay_right_under_repeated_kills(tmp_path: Path) -> None:
    reached = kill_repeatedly(lambda: Replica(tmp_path), 5, 1)
    check(tmp_path, reached)


@pytest.mark.timeout(300)
def test_u1_two_replicas_stay_right_under_repeated_kills_and_storage_faults(tmp_path: Path) -> None:
    reached = kill_repeatedly(lambda: Replica(tmp_path, faults=0.01), 2, 2)
    check(tmp_path, reached)


def stop(process: subprocess.Popen[str], storage: Path) -> None:
    """Stop the process while it does not hold the lock of the embedded database, which no other process could take
    over."""
    while True:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until the process has stopped
        with closing(sqlite3.connect(storage / "meta.db", timeout=1, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                RUNTIME.sleep_s(0.01)
            else:
                return


@pytest.mark.timeout(300)
def test_a_paused_leader_is_fenced_when_it_resumes(tmp_path: Path) -> None:
    """The paused leader believes that it leads; its first commit fails. Nothing that it wrote meanwhile is visible."""
    with replicas(2, lambda: Replica(tmp_path)) as several:
        wait_until(lambda: any(one.leads for one in several) and all(one.time >= 2 for one in several), several)
        [leader] = [one for one in several if one.leads]
        [other] = [one for one in several if one is not leader]
        stop(leader.process, tmp_path / "s")
        wait_until(lambda: other.leads and other.time > leader.time + 3, several)
        leader.process.send_signal(signal.SIGCONT)
        wait_until(lambda: leader.process.poll() is not None, several)
        leader._thread.join()
        assert leader.error.startswith("error fenced"), leader.error
        reached = other.time
        wait_until(lambda: other.time > reached + 3, several)
    check(tmp_path, other.time)


@contextmanager
def database(server: PostgresServer) -> Iterator[tuple[psycopg.Connection[Any], str, str]]:
    """Create a database for Meta; return a connection that may terminate others, its name and its address."""
    name = f"replicas_{RUNTIME.new_id()[:8]}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        yield admin, name, server.dsn.replace("/postgres?", f"/{name}?")


def run_disturbed(start: Callable[[], Replica], disturb: Callable[[int], object]) -> int:
    """Check that both replicas continue after the disturbance, and one alone when the other ends; return how far they
    came."""
    with replicas(2, start) as several:
        wait_until(lambda: any(one.leads for one in several) and all(one.time >= 2 for one in several), several)
        for number in range(25):
            disturb(number)
            RUNTIME.sleep_s(0.1)
        before = [one.time for one in several]
        wait_until(lambda: all(one.time > time + 3 for one, time in zip(several, before, strict=True)), several)
        [leader] = [one for one in several if one.leads]
        [other] = [one for one in several if one is not leader]
        leader.end()
        wait_until(lambda: other.leads and other.time > leader.time + 3, several)
        assert not other.error
        return other.time


@pytest.mark.timeout(300)
def test_u1_replicas_continue_after_connections_to_postgresql_are_cut(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """Both wait for the server; a commit whose answer was lost is read back, otherwise rows would be there twice."""
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
    with database(postgres_server) as (admin, name, dsn):
        reached = run_disturbed(lambda: Replica(tmp_path, meta=dsn), lambda _: admin.execute(cut, (name,)))
        check(tmp_path, reached, dsn)


@pytest.mark.timeout(300)
def test_u1_replicas_continue_after_connections_to_s3_are_cut(
    tmp_path: Path, postgres_server: PostgresServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are cut at any moment, also after the store has done a request and before it answers, and stay cut
    for a while."""
    host, port = s3_server.endpoint.removeprefix("http://").split(":")
    cut: list[int] = []
    with database(postgres_server) as (_, name, dsn), cutting_proxy(host, int(port)) as proxy:
        for variable, value in s3_server.environment(f"http://127.0.0.1:{proxy.port}").items():
            monkeypatch.setenv(variable, value)

        def disturb(number: int) -> None:
            proxy.losing = number % 4
            cut.append(proxy.cut())
            if number == 12:
                with proxy.away():
                    RUNTIME.sleep_s(1.5)

        storage = f"s3://{s3_server.bucket}/{name}"
        reached = run_disturbed(lambda: Replica(tmp_path, storage, dsn), disturb)
        assert sum(cut) > 10
        check(tmp_path, reached, dsn, storage)


def origin_of(pid: int) -> Origin:
    ticks = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return msgspec.structs.replace(this_process(), pid=pid, start_ticks=ticks)


def test_an_ended_process_that_its_parent_has_not_waited_for_counts_as_gone() -> None:
    """The pid of a process stays in use until its parent waits for it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        known = origin_of(process.pid)
        assert not known.has_ended()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert known.has_ended()
    assert known.has_ended()
    assert not origin_of(os.getppid()).has_ended()
