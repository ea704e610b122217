"""`SqliteMeta`: several processes, crashes, damage, and the files on disk."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from evertide.errors import Closed, NotAllowedNow, OutcomeUnknown, RecordDamaged, Unavailable, UnsupportedFormat
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import Record, SqliteMeta, SystemFiles, Write
from evertide.types import SequenceNumber
from tests.store import committers
from tests.store.race import together

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@pytest.fixture
def meta(path: Path, runtime: SystemRuntime, settings: Settings) -> Iterator[SqliteMeta]:
    opened = SqliteMeta(path, runtime, settings)
    yield opened
    opened.close()


def start_committers(path: Path, count: int, *names: str) -> list[subprocess.Popen[str]]:
    """They begin together, once all are ready."""
    command = [sys.executable, "-m", committers.__name__, str(path), str(count)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen([*command, who], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for who in names]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    return processes


def check_pair(meta: SqliteMeta, acknowledged: dict[int, str]) -> None:
    """Every acknowledged record is there, with its author, in both keys, without gaps, and complete."""
    a, b = (meta.scan(key) for key in committers.PAIR)
    assert a == b
    assert [found.seqno for found in a] == list(range(1, len(a) + 1))
    for found in a:
        who = found.data.partition(b" ")[0].decode()
        assert found.data == committers.payload(who, found.seqno)
        assert acknowledged.get(found.seqno, who) == who
    assert set(acknowledged) <= set(range(1, len(a) + 1))


def test_processes_race_and_one_wins_each_number(path: Path, meta: SqliteMeta) -> None:
    names = ("one", "two", "three")
    acknowledged: dict[int, str] = {}
    for who, process in zip(names, start_committers(path, 150, *names), strict=True):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for line in output.split():
            assert acknowledged.setdefault(int(line), who) == who
    assert sorted(acknowledged) == list(range(1, 451))
    check_pair(meta, acknowledged)
    assert len(meta.scan(committers.PAIR[0])) == 450


def test_a_kill_during_a_commit_loses_no_acknowledged_record(path: Path, meta: SqliteMeta) -> None:
    acknowledged: dict[int, str] = {}
    for round_, killed_after in enumerate((1, 17, 40)):
        who = f"process{round_}"
        (process,) = start_committers(path, 1_000_000, who)
        assert process.stdout is not None
        for seen, line in enumerate(process.stdout, 1):
            acknowledged[int(line)] = who
            if seen == killed_after:
                process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        process.stdout.close()
        check_pair(meta, acknowledged)
    number = len(meta.scan(committers.PAIR[0]))
    assert meta.commit([Write(key, number, b"after") for key in committers.PAIR]) is None


def test_a_database_is_recovered_after_a_kill_of_its_only_process(
    path: Path, runtime: SystemRuntime, settings: Settings
) -> None:
    """No other process has it open: the next one recovers the write-ahead log."""
    (process,) = start_committers(path, 1_000_000, "only")
    assert process.stdout is not None
    acknowledged = {int(process.stdout.readline()): "only" for _ in range(25)}
    process.kill()
    acknowledged |= {int(line): "only" for line in process.stdout}
    process.wait(60)
    process.stdout.close()
    meta = SqliteMeta(path, runtime, settings)
    check_pair(meta, acknowledged)
    meta.close()


def test_rule_7_wait_sees_another_process(path: Path, meta: SqliteMeta) -> None:
    (process,) = start_committers(path, 1, "other")
    assert meta.wait(committers.PAIR[0], 0, 60.0) is True
    process.communicate(timeout=60)
    assert meta.wait(committers.PAIR[0], 1, 0.05) is False


def test_a_wait_does_not_spin(path: Path, runtime: SystemRuntime, settings: Settings) -> None:
    asked: list[str] = []

    class Watched(SqliteMeta):
        def _read(self, name: str, values: Mapping[str, object]) -> list[tuple[object, ...]]:
            asked.append(name)
            return super()._read(name, values)

    meta = Watched(path, runtime, replace(settings, poll_interval_s=0.05))
    assert meta.wait("key", 0, 0.3) is False
    assert 2 <= len(asked) <= 8
    meta.close()


def test_every_connection_is_configured_for_durability(path: Path, meta: SqliteMeta) -> None:
    """On every connection, not only the first."""
    settings_seen: set[tuple[object, ...]] = set()
    inside = threading.Barrier(3)

    def look(_: int) -> None:
        with meta._pool.use() as connection:
            inside.wait()
            names = ("journal_mode", "synchronous", "wal_autocheckpoint")
            settings_seen.add(tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names))

    assert together(3, look) == [None] * 3
    assert settings_seen == {("wal", 2, 2000)}


def test_the_directory_is_synced_after_the_file_was_created(
    path: Path, runtime: SystemRuntime, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(SystemFiles, "sync_directory", lambda _, directory: synced.append((directory, path.exists())))
    SqliteMeta(path, runtime, settings).close()
    assert synced == [(path.parent, True)]


def test_committed_records_exist_after_reopening(path: Path, runtime: SystemRuntime, settings: Settings) -> None:
    for number in range(3):
        meta = SqliteMeta(path, runtime, settings)
        assert meta.commit([Write("k", number, b"%d" % number)]) is None
        meta.close()
        meta.close()
    meta = SqliteMeta(path, runtime, settings)
    assert meta.scan("k") == [
        Record(SequenceNumber(1), b"0"),
        Record(SequenceNumber(2), b"1"),
        Record(SequenceNumber(3), b"2"),
    ]
    meta.close()


def test_the_layout_is_version_1(path: Path, runtime: SystemRuntime, settings: Settings) -> None:
    meta = SqliteMeta(path, runtime, settings)
    assert meta.commit([Write("k", 0, b"data")]) is None
    meta.close()
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (1,)
    assert raw.execute("SELECT key, seqno, data FROM log").fetchall() == [("k", 1, b"data")]
    raw.close()


def test_a_newer_version_is_refused(path: Path, runtime: SystemRuntime, settings: Settings) -> None:
    SqliteMeta(path, runtime, settings).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 7")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedFormat) as caught:
        SqliteMeta(path, runtime, settings)
    assert (caught.value.path, caught.value.found, caught.value.supported) == (str(path), 7, 1)
    assert path.read_bytes() == before


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 - 100)


def overwrite_the_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(4 * 4096))


def drop_the_table(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("DROP TABLE log")
    raw.close()


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(os.urandom(8192)), cut_short, overwrite_the_middle, drop_the_table],
    ids=["random bytes", "cut short", "overwritten", "no table"],
)
def test_damage_is_named(
    path: Path, runtime: SystemRuntime, settings: Settings, damage: Callable[[Path], object]
) -> None:
    meta = SqliteMeta(path, runtime, settings)
    for number in range(50):
        assert meta.commit([Write("k", number, os.urandom(1000))]) is None
    meta.close()
    damage(path)
    with pytest.raises(RecordDamaged, match="backup") as caught:
        SqliteMeta(path, runtime, settings).scan("k")
    assert caught.value.path == str(path)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_gets_no_more_commits(path: Path, meta: SqliteMeta, replaced: bool) -> None:
    """They would be acknowledged, and no process would ever read them."""
    assert meta.commit([Write("k", 0, b"1")]) is None
    if replaced:
        shutil.copyfile(path, path.with_name("copy"))
        path.with_name("copy").replace(path)
    else:
        path.unlink()
    with pytest.raises(RecordDamaged, match="removed or replaced"):
        meta.commit([Write("k", 1, b"2")])


def test_a_lock_that_is_never_released_ends_as_unavailable(
    path: Path, meta: SqliteMeta, runtime: SystemRuntime, settings: Settings
) -> None:
    impatient = SqliteMeta(path, runtime, replace(settings, retry_limit_s=0.05))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        impatient.commit([Write("k", 0, b"1")])
    assert impatient.head("k") is None
    other.execute("ROLLBACK")
    other.close()
    assert impatient.commit([Write("k", 0, b"1")]) is None
    impatient.close()


def test_an_error_while_committing_leaves_the_outcome_unknown(path: Path, meta: SqliteMeta) -> None:
    """A real error: the write-ahead log may not grow. The same commit then settles it."""
    assert meta.commit([Write("k", 0, b"1")]) is None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("meta.db-wal").stat().st_size + 5000, hard))
    try:
        with pytest.raises(OutcomeUnknown, match="disk I/O error"):
            meta.commit([Write("k", 1, b"x" * 100_000), Write("other", 0, b"")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(meta.heads("")) == {"k"}
    assert meta.commit([Write("k", 1, b"x" * 100_000), Write("other", 0, b"")]) is None
    assert set(meta.heads("")) == {"k", "other"}


def test_connections_of_ended_threads_are_closed(meta: SqliteMeta) -> None:
    for _ in range(10):
        assert together(4, lambda number: meta.head(f"{number}")) == [None] * 4
    assert len(meta._pool._idle) <= 4


def test_calls_after_close_are_refused(meta: SqliteMeta, runtime: SystemRuntime) -> None:
    def work(thread: int) -> None:
        if thread:
            meta.wait("k", 0, 60.0)
        else:
            runtime.sleep_s(0.02)
            meta.close()

    errors = together(2, work)
    assert isinstance(errors[1], Closed)
    with pytest.raises(Closed, match="closed"):
        meta.commit([Write("k", 0, b"1")])


def in_a_fork(path: Path, meta: SqliteMeta, answers: multiprocessing.queues.SimpleQueue[str]) -> None:
    def open_another() -> object:
        return SqliteMeta(path, SystemRuntime(), Settings()).head("k")

    calls: list[Callable[[], object]] = [lambda: meta.head("k"), open_another]
    for call in calls:
        try:
            answers.put(repr(call()))
        except NotAllowedNow as error:
            answers.put(error.why)
    meta.close()


def test_a_forked_child_is_refused_and_harms_nothing(path: Path, meta: SqliteMeta) -> None:
    assert meta.commit([Write("k", 0, b"1")]) is None
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.queues.SimpleQueue[str] = fork.SimpleQueue()
    child = fork.Process(target=in_a_fork, args=(path, meta, answers))
    child.start()
    assert "fork" in answers.get()
    assert "fork" in answers.get()
    child.join(60)
    assert child.exitcode == 0
    assert meta.commit([Write("k", 1, b"2")]) is None
    assert meta.head("k") == Record(SequenceNumber(2), b"2")


def test_a_missing_directory_is_named(tmp_path: Path, runtime: SystemRuntime, settings: Settings) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        SqliteMeta(tmp_path / "nowhere" / "meta.db", runtime, settings)
