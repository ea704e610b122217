"""From a PostgreSQL under load, through views, into a PostgreSQL, a Delta table and a Kafka topic, with repeated kills.

In the end each target and each view equals a query on the source. At every kill the slot is at or before the durable
position in the journal, and it advances from kill to kill (I9, I10, J1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.sinks.sink_record import read_sinks
from evertide.runtime import SystemRuntime
from evertide.sources.generated.seeded import RandomStream
from evertide.store.open import open_storage
from tests.kit.delivering import deliver_once
from tests.pipeline.everything import QUERIES, SETTINGS, World, open_world
from tests.pipeline.kit import rows_of
from tests.processes import running
from tests.servers.kafka import KafkaBroker
from tests.sinks.kafka.kit import fold_records, read_committed
from tests.sinks.kafka.test_pipelines import check_numbers
from tests.sources.kafka.kit import new_topic
from tests.sources.postgres.server import Database, running_logical
from tests.sources.postgres.test_kill import check_bound

ACCOUNTS = 100
SINKS = 4
LIMIT_S = 120.0
"""The longest time without progress."""


@contextmanager
def database(name: str) -> Iterator[Database]:
    """Create a database with pgbench's tables, few accounts, and a schema that the pipeline writes to."""
    with running_logical() as server:
        db = Database(server, name)
        assert server.pgbench(name, "-i", "-s", "1", "-q").wait(60) == 0
        db.run("ALTER TABLE pgbench_history REPLICA IDENTITY FULL", "CREATE SCHEMA out")
        db.run(f"DELETE FROM pgbench_accounts WHERE aid > {ACCOUNTS}")
        yield db
        db.close()


@contextmanager
def load(db: Database, directory: Path, rate: int) -> Iterator[None]:
    """Run pgbench's own transactions on the accounts."""
    script = directory / "tpcb.sql"
    script.write_text(
        f"\\set aid random(1, {ACCOUNTS})\n\\set tid random(1, 10)\n\\set delta random(-5000, 5000)\n"
        "BEGIN;\n"
        "UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;\n"
        "UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;\n"
        "UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;\n"
        "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, 1, :aid, :delta, now());\n"
        "END;\n"
    )
    process = db.server.pgbench(db.name, "-n", "-c", "2", "-T", "3600", "-R", str(rate), "-f", str(script))
    try:
        yield
        assert process.poll() is None, "pgbench ended before it was stopped"
    finally:
        process.kill()
        process.wait(10)


def read_delivered(world: World, runtime: SystemRuntime) -> int:
    """Return the last transaction that all four sinks have received, or -1 before they are complete."""
    opened = open_storage(Path(world.storage), runtime=runtime, settings=SETTINGS)
    try:
        found = read_sinks(opened.meta, runtime, SETTINGS)
    finally:
        opened.close()
    return min(one.record.written for one in found.values()) if len(found) == SINKS else -1


def until_beyond(world: World, db: Database, stood: int, runtime: SystemRuntime) -> None:
    """Wait until the slot and all sinks have advanced; check that the slot is never ahead of the durable position."""
    deadline_s, before = runtime.monotonic_s() + LIMIT_S, read_delivered(world, runtime)
    while check_bound(Path(world.storage), db, runtime) <= stood or read_delivered(world, runtime) <= before:
        assert runtime.monotonic_s() < deadline_s, "the slot or a sink does not advance"
        runtime.sleep_s(0.1)


def read_targets(db: Database, world: World, broker: KafkaBroker) -> dict[str, list[tuple[Any, ...]]]:
    """Return the content of the targets."""
    found = read_committed(broker, world.topic)
    check_numbers(found)
    return {
        "pg": db.rows("SELECT tid, tbalance, moves, total FROM out.tellers"),
        "bag": db.rows("SELECT level FROM out.levels"),
        "lake": [tuple(row.values()) for row in DeltaTable(world.lake).to_pyarrow_table().to_pylist()],
        "topic": [tuple(row.values()) for row in fold_records(found).values()],
    }


def sort_rows(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    """Convert a numeric of PostgreSQL to the float or integer that the other targets have."""
    return float(value)


def settle(p: Pipeline, db: Database, runtime: SystemRuntime) -> dict[str, list[tuple[Any, ...]]]:
    """Wait until the views equal the source and the sinks have them; return the rows of the source."""
    wanted = {view: sort_rows(db.rows(query)) for view, query in QUERIES.items()}
    deadline_s = runtime.monotonic_s() + LIMIT_S
    while any(sort_rows(rows_of(p, view)) != rows for view, rows in wanted.items()):
        assert runtime.monotonic_s() < deadline_s, p.status()
        if p.advance() is None:
            runtime.sleep_s(0.02)
        else:
            deadline_s = runtime.monotonic_s() + LIMIT_S
    deliver_once(p)
    return wanted


def survive(
    world: World, db: Database, broker: KafkaBroker, chance: RandomStream, *, kills: int, rate: int = 40
) -> str:
    runtime = SystemRuntime()
    stood = [0]
    with load(db, Path(world.storage).parent, rate):
        for _ in range(kills):
            with running("tests.pipeline.everything", *astuple(world)) as worker:
                until_beyond(world, db, stood[-1], runtime)
                runtime.sleep_s(chance.below(1200) / 1000)
                worker.kill()
            stood.append(check_bound(Path(world.storage), db, runtime))
    assert stood == sorted(set(stood)), "the slot does not advance"
    with open_world(world, threads=False) as p:
        wanted = settle(p, db, runtime)
        status = p.status()
        assert (status.state, [sink.behind for sink in status.sinks]) == ("running", [0] * SINKS), status
        time = p.time
    for sink, rows in read_targets(db, world, broker).items():
        view = next(view for view, sinks in world.sinks.items() if sink in sinks)
        assert sort_rows(rows) == wanted[view], sink
    check_bound(Path(world.storage), db, runtime)
    moves = db.value("SELECT count(*) FROM pgbench_history")
    assert moves > kills
    assert wanted["levels"], "no kill made the pipeline advance"
    return f"{world.kind}, {kills} kills, {time} transactions, {moves} of pgbench"


@pytest.mark.timeout(240)
def test_all_sinks_equal_the_source_after_repeated_kills_under_pgbench(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    with database("everything") as db:
        topic = new_topic(kafka_broker, 2)
        world = World("small", str(tmp_path / "s"), db.dsn, db.slot, kafka_broker.brokers, topic)
        survive(world, db, kafka_broker, RandomStream(7), kills=5)
