"""X12: SQLite fails at every step of every call of `SqliteMeta`. Each call took effect, did not happen, or may have
happened.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from evertide.errors import OutcomeUnknown, StorageForbidden, StorageFull, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import Guard, SqliteMeta, Write, open_storage
from evertide.store.retry import commit_until_known
from tests.pipeline.kit import ORDERS, ScriptedSource, batch, engine, rows_of, with_sources
from tests.pipeline.test_threads import order, wait_until
from tests.store.sqlite_faults import CODES, Faults, inject_faults

LASTING = 1_000_000
SETTINGS = Settings(poll_interval_s=0.01, retry_wait_s=0.001, retry_wait_max_s=0.002, retry_limit_s=0.02)
WRITES = [Write("a", 2, b"new a"), Write("b", 0, b"new b"), Write("gone", 1, None)]
GUARDS = [Guard("guarded", 1)]
BEFORE = {"a": [b"1", b"2"], "guarded": [b"1"], "gone": [b"1"]}
COMMITTED = {"a": [b"1", b"2", b"new a"], "b": [b"new b"], "guarded": [b"1"]}
TRUNCATED = {"a": [b"2"], "guarded": [b"1"], "gone": [b"1"]}


def commit(meta: SqliteMeta) -> object:
    assert meta.commit(WRITES, GUARDS) is None
    return None


def commit_stale(meta: SqliteMeta) -> object:
    stale = meta.commit([Write("a", 1, b"late")])
    assert stale is not None
    return stale.found


CALLS: dict[str, tuple[Callable[[SqliteMeta], object], object, dict[str, list[bytes]]]] = {
    "commit": (commit, None, COMMITTED),
    "stale commit": (commit_stale, 2, BEFORE),
    "truncate": (lambda meta: meta.truncate("a", 2), None, TRUNCATED),
    "scan": (lambda meta: [record.data for record in meta.scan("a")], [b"1", b"2"], BEFORE),
    "head": (lambda meta: meta.head("none"), None, BEFORE),
    "heads": (lambda meta: sorted(meta.heads("g")), ["gone", "guarded"], BEFORE),
    "wait": (lambda meta: meta.wait("a", 1, 1.0), True, BEFORE),
}
FORMS: dict[str, tuple[int, bool, bool]] = {
    "once": (1, False, False),
    "once, rolled back by SQLite": (1, True, False),
    "once, after COMMIT": (1, False, True),
    "lasting": (LASTING, False, False),
}
"""How many steps fail, whether SQLite ends the transaction by itself, and whether COMMIT took effect."""
COLD = ("commit", "scan")
"""Calls that are also made without an open connection, so that they open one."""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with inject_faults(monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "meta.db"
    meta = SqliteMeta(path, SystemRuntime(), SETTINGS)
    for key, records in BEFORE.items():
        for number, data in enumerate(records):
            assert meta.commit([Write(key, number, data)]) is None
    meta.close()
    return path


def open_copy(template: Path, path: Path) -> SqliteMeta:
    shutil.copyfile(template, path)
    return SqliteMeta(path, SystemRuntime(), SETTINGS)


def is_possible(name: str, form: str) -> bool:
    """Whether this error can occur after a commit took effect: SQLite reports a full disk and a lock before that."""
    return not FORMS[form][2] or CODES[name] & 0xFF == sqlite3.SQLITE_IOERR


def content(path: Path) -> dict[str, list[bytes]]:
    """The content as another process sees it."""
    meta = SqliteMeta(path, SystemRuntime(), SETTINGS)
    try:
        return {key: [record.data for record in meta.scan(key)] for key in meta.heads("")}
    finally:
        meta.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CODES)
def test_a_failure_at_any_step_of_any_call_has_the_right_kind(
    name: str, form: str, faults: Faults, template: Path, tmp_path: Path
) -> None:
    if not is_possible(name, form):
        return
    hits = 0
    for called, is_cold in [*((called, False) for called in CALLS), *((called, True) for called in COLD)]:
        call, answer, result = CALLS[called]
        for first in range(LASTING):
            path = tmp_path / f"{called}-{is_cold}-{first}.db"
            meta = open_copy(template, path)
            if is_cold:
                meta._pool.drop_idle()
            faults.plan(first, CODES[name], *FORMS[form])
            outcome = "done"
            try:
                assert call(meta) == answer
            except Unavailable:
                outcome = "did not happen"
            except OutcomeUnknown:
                outcome = "unknown"
            faults.lift()
            if not faults.failed:
                meta.close()
                break
            hits += 1
            found = content(path)
            if outcome == "unknown":
                assert "COMMIT" in faults.failed, (called, first, faults.seen)
                assert found in (BEFORE, result)
            else:
                assert found == (result if outcome == "done" else BEFORE), (called, first, faults.seen)
            if found == BEFORE:  # the same object continues to work
                assert call(meta) == answer
                assert content(path) == result
            meta.close()
    assert hits > 30


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CODES)
def test_a_failure_at_any_step_of_opening_can_be_retried(name: str, form: str, faults: Faults, tmp_path: Path) -> None:
    """Opening may be repeated: what an interrupted opening did is found. Fails if "busy" while the table is created is
    reported as `damaged`.
    """
    if not is_possible(name, form):
        return
    for is_there in (False, True):
        for first in range(LASTING):
            root = tmp_path / f"{is_there}-{first}"
            if is_there:
                open_storage(root, runtime=SystemRuntime(), settings=SETTINGS).close()
            faults.plan(first, CODES[name], *FORMS[form])
            with suppress(Unavailable, OutcomeUnknown):
                open_storage(root, runtime=SystemRuntime(), settings=SETTINGS).close()
            faults.lift()
            if not faults.failed:
                break
            storage = open_storage(root, runtime=SystemRuntime(), settings=SETTINGS)
            assert storage.meta.commit([Write("k", 0, b"1")]) is None
            storage.close()
        assert first > 5


@pytest.mark.parametrize("name", CODES)
def test_a_settled_commit_takes_effect_once(name: str, faults: Faults, template: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, retry_limit_s=60.0)
    for form, (_, rolls_back, after) in FORMS.items():
        for first in range(9 if is_possible(name, form) else 0):
            path = tmp_path / f"{form}-{first}.db"
            meta = open_copy(template, path)
            faults.plan(first, CODES[name], 3, rolls_back, after)
            try:
                assert commit_until_known(meta, WRITES, GUARDS, SystemRuntime(), settings) is None
            except StorageFull:
                faults.lift()
                assert commit_until_known(meta, WRITES, GUARDS, SystemRuntime(), settings) is None
            assert content(path) == COMMITTED
            meta.close()


@pytest.mark.parametrize("name", CODES)
def test_a_pipeline_waits_for_storage_and_continues(name: str, faults: Faults, tmp_path: Path) -> None:
    """Every statement fails until the status reports it. The pipeline continues as soon as the failures end."""
    runtime = SystemRuntime()
    settings = replace(SETTINGS, retry_limit_s=0.2, retry_wait_max_s=0.05)
    storage = open_storage(tmp_path / "storage", runtime=runtime, settings=settings)
    source = ScriptedSource("orders", ("orders",))
    opened = partial(Pipeline, engine(), storage, base=Path(), runtime=runtime, settings=settings)
    with with_sources(source), opened() as pipeline:
        running = threading.Thread(target=pipeline.run, daemon=True)
        faults.plan(0, CODES[name], LASTING, False, False)
        source.batches.append(batch(ORDERS, [order(1)]))
        running.start()
        wait_until(lambda: pipeline._process_state.find_worst().state == "stalled")
        faults.lift()
        wait_until(lambda: pipeline.time == 1 and pipeline._process_state.find_worst().state == "running")
        assert pipeline.status().state == "running"
        assert rows_of(pipeline, "revenue") == [("ann", 5)]
        pipeline.stop()
        running.join(60)
        assert not running.is_alive()


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, Unavailable), (errno.EACCES, StorageForbidden)])
def test_a_directory_that_cannot_be_read_has_the_right_kind(
    number: int, expected: type[Unavailable], faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite cannot open the file, and its status cannot be read either.

    Fails if EIO is `storage_forbidden`, which ends an opening.
    """
    meta = SqliteMeta(tmp_path / "meta.db", SystemRuntime(), SETTINGS)

    def fail(path: Path, **_: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    faults.plan(0, CODES["cannot open"], LASTING, False, False)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", fail)
        patched.setattr(os, "access", lambda *_: False)
        with pytest.raises(Unavailable) as caught:
            meta.head("a")
    assert type(caught.value) is expected
    faults.lift()
    assert meta.head("a") is None
    meta.close()
