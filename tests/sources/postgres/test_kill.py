"""T6 and J1: kill -9 at every moment of a transaction, and at random under load. At the end no row is missing or
doubled. At each kill the slot is at or before the bound position, and in between it advances (I10).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.journal.journal import Journal
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.sources.generated.seeded import RandomStream
from evertide.store.open import open_storage
from tests.pipeline.kit import rows_of
from tests.sources.postgres.kit import bound_lsn, check_confirmed, worker
from tests.sources.postgres.server import Database
from tests.sources.postgres.worker import BENCH, MOMENTS, SETTINGS, open_worker

LIMIT_S = 30.0


def check_bound(storage: Path, db: Database, runtime: SystemRuntime) -> int:
    """The durable position, read from the storage. Returns the position of the slot."""
    opened = open_storage(storage, runtime=runtime, settings=SETTINGS)
    try:
        journal = Journal(opened.blob, opened.meta, runtime=runtime, settings=SETTINGS)
        confirmed = check_confirmed(db, lambda: bound_lsn(journal, db.slot))
    finally:
        opened.close()
    return confirmed


def until(p: Pipeline, db: Database, name: str, query: str, runtime: SystemRuntime) -> None:
    deadline_s = runtime.monotonic_s() + LIMIT_S
    expected = sorted(db.rows(query), key=repr)
    while rows_of(p, name) != expected:
        assert runtime.monotonic_s() < deadline_s, p.status()
        if p.advance() is None:
            runtime.sleep_s(0.01)


def write(db: Database, first: int) -> None:
    """Several transactions, one large enough to be streamed, one rolled back."""
    for number in range(first, first + 5):
        db.run(f"INSERT INTO notes VALUES ('{number}'), ('{number}')")
    with db.connection.transaction():
        db.run(f"INSERT INTO notes SELECT 'big {first}' || repeat('x', 100) FROM generate_series(1, 1500)")
        db.run(f"DELETE FROM notes WHERE text = '{first}'", f"UPDATE notes SET text = 'u' WHERE text = '{first + 1}'")
    with db.connection.transaction(force_rollback=True):
        db.run(f"INSERT INTO notes SELECT 'never {first}' || repeat('x', 100) FROM generate_series(1, 1500)")


@pytest.mark.parametrize("moment", MOMENTS)
def test_t6_a_kill_between_any_two_steps_loses_and_doubles_nothing(
    tmp_path: Path, db: Database, runtime: SystemRuntime, moment: str
) -> None:
    """The first kill is in the snapshot, the others are in the stream.

    If the slot were confirmed before the bind, `staged` would lose rows; if repeats were not recognised, `bound` would
    double them.
    """
    storage = tmp_path / "s"
    db.run("CREATE TABLE notes (text text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    write(db, 0)
    deaths = 0
    for cycle in range(3):
        with worker(storage, db, "notes", moment, ("1", "5", "2")[cycle]) as dying:
            write(db, 100 * (cycle + 1))
            for extra in range(200):
                if dying.process.poll() is not None:
                    break
                db.run(f"INSERT INTO notes VALUES ('cycle {cycle} {extra}')")
                runtime.sleep_s(0.05)
            deaths += dying.process.wait(LIMIT_S) == -9
        check_bound(storage, db, runtime)
    assert deaths == 3
    with open_worker(storage, db.dsn, db.slot, "notes") as p:
        until(p, db, "notes", "SELECT text FROM notes", runtime)
        assert p.status().state == "running", p.status().why
    assert check_bound(storage, db, runtime) > 0


@pytest.mark.timeout(240)
def test_repeated_kills_under_pgbench_lose_and_double_nothing(
    tmp_path: Path, db: Database, runtime: SystemRuntime
) -> None:
    """At the end every table equals its source. The slot never passed the durable position, and never stopped
    advancing.
    """
    storage, rng = tmp_path / "s", RandomStream(5)
    assert db.server.pgbench(db.name, "-i", "-s", "1", "-q").wait(60) == 0
    db.run("ALTER TABLE pgbench_history REPLICA IDENTITY FULL", "DELETE FROM pgbench_accounts WHERE aid > 3000")
    load = db.server.pgbench(db.name, "-c", "2", "-T", "240", "-R", "150")
    stood: list[int] = []
    try:
        while len(stood) < 6 or len(set(stood)) < 3:  # on a loaded machine, a process may die before it reads anything
            with worker(storage, db, "bench"):
                runtime.sleep_s(0.3 + rng.below(2000) / 1000)
            stood.append(check_bound(storage, db, runtime))
    finally:
        load.kill()
        load.wait(10)
    with open_worker(storage, db.dsn, db.slot, "bench") as p:
        for name, (schema, _) in BENCH.items():
            until(p, db, name, f"SELECT {', '.join(schema.names)} FROM {name}", runtime)
        assert p.status().state == "running", p.status().why
    stood.append(check_bound(storage, db, runtime))
    assert stood == sorted(stood)
