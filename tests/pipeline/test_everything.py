"""From a PostgreSQL under load, through views, into a PostgreSQL, a Delta table and a Kafka topic: killed all the time.

In the end each of them, and each view, equals a query on the source. At every kill the slot stands at or before what is
durable in the journal, and from kill to kill it moves on (I9, I10, J1).
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
from tests.pipeline.everything import QUERIES, SETTINGS, World, open_world
from tests.pipeline.kit import rows_of
from tests.processes import running
from tests.servers.kafka import KafkaBroker
from tests.sinks.kafka.kit import folded, read_committed
from tests.sinks.kafka.test_pipelines import check_numbers
from tests.sources.kafka.kit import new_topic
from tests.sources.postgres.server import Database, running_logical
from tests.sources.postgres.test_kill import check_bound

ACCOUNTS = 100
SINKS = 4
LIMIT_S = 120.0
"""So long nothing may happen."""


@contextmanager
def database(name: str) -> Iterator[Database]:
    """With pgbench's tables, few accounts, and room for what the pipeline writes."""
    with running_logical() as server:
        db = Database(server, name)
        assert server.pgbench(name, "-i", "-s", "1", "-q").wait(60) == 0
        db.run("ALTER TABLE pgbench_history REPLICA IDENTITY FULL", "CREATE SCHEMA out")
        db.run(f"DELETE FROM pgbench_accounts WHERE aid > {ACCOUNTS}")
        yield db
        db.close()


@contextmanager
def load(db: Database, directory: Path, rate: int) -> Iterator[None]:
    """pgbench's own transactions, on the accounts that there are."""
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
        assert process.poll() is None, "pgbench ended by itself"
    finally:
        process.kill()
        process.wait(10)


def delivered(world: World, runtime: SystemRuntime) -> int:
    """Up to which transaction all four sinks have everything; -1 before they do."""
    opened = open_storage(Path(world.storage), runtime=runtime, settings=SETTINGS)
    try:
        found = read_sinks(opened.meta, runtime, SETTINGS)
    finally:
        opened.close()
    return min(one.record.written for one in found.values()) if len(found) == SINKS else -1


def until_beyond(world: World, db: Database, stood: int, runtime: SystemRuntime) -> None:
    """Until the slot and all sinks have moved on. At no moment the slot stands where nothing is durable."""
    deadline_s, before = runtime.monotonic_s() + LIMIT_S, delivered(world, runtime)
    while check_bound(Path(world.storage), db, runtime) <= stood or delivered(world, runtime) <= before:
        assert runtime.monotonic_s() < deadline_s, "it does not advance"
        runtime.sleep_s(0.1)


def written(db: Database, world: World, broker: KafkaBroker) -> dict[str, list[tuple[Any, ...]]]:
    """What the targets hold."""
    found = read_committed(broker, world.topic)
    check_numbers(found)
    return {
        "pg": db.rows("SELECT tid, tbalance, moves, total FROM out.tellers"),
        "bag": db.rows("SELECT level FROM out.levels"),
        "lake": [tuple(row.values()) for row in DeltaTable(world.lake).to_pyarrow_table().to_pylist()],
        "topic": [tuple(row.values()) for row in folded(found).values()],
    }


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    """A number is a number: what PostgreSQL calls numeric is a float or an integer elsewhere."""
    return float(value)


def settle(p: Pipeline, db: Database, runtime: SystemRuntime) -> dict[str, list[tuple[Any, ...]]]:
    """Until the views are what the source says, and the sinks have them. What the source says."""
    wanted = {view: ordered(db.rows(query)) for view, query in QUERIES.items()}
    deadline_s = runtime.monotonic_s() + LIMIT_S
    while any(ordered(rows_of(p, view)) != rows for view, rows in wanted.items()):
        assert runtime.monotonic_s() < deadline_s, p.status()
        if p.advance() is None:
            runtime.sleep_s(0.02)
        else:
            deadline_s = runtime.monotonic_s() + LIMIT_S
    p.deliver_once()
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
                worker.killed()
            stood.append(check_bound(Path(world.storage), db, runtime))
    assert stood == sorted(set(stood)), "the slot does not advance"
    with open_world(world, threads=False) as p:
        wanted = settle(p, db, runtime)
        status = p.status()
        assert (status.state, [sink.behind for sink in status.sinks]) == ("running", [0] * SINKS), status
        time = p.time
    for sink, rows in written(db, world, broker).items():
        view = next(view for view, sinks in world.sinks.items() if sink in sinks)
        assert ordered(rows) == wanted[view], sink
    check_bound(Path(world.storage), db, runtime)
    moves = db.value("SELECT count(*) FROM pgbench_history")
    assert moves > kills
    assert wanted["levels"], "nothing happened"
    return f"{world.kind}, {kills} kills, {time} transactions, {moves} of pgbench"


@pytest.mark.timeout(240)
def test_pgbench_and_all_sinks_while_the_pipeline_is_killed_again_and_again(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    with database("everything") as db:
        topic = new_topic(kafka_broker, 2)
        world = World("small", str(tmp_path / "s"), db.dsn, db.slot, kafka_broker.brokers, topic)
        survive(world, db, kafka_broker, RandomStream(7), kills=5)
