"""U1, X5, X6 on Spark: two replicas on a failing storage, killed at any storage call, by seed.

They run in one process, step by step, as in `test_replica_faults`, with views on Spark. A killed process leaves its
unfinished work as it was; a client that got no answer repeats its push at the other replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evertide.errors import GenerationMoved
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole, end_registration
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.shard.maintenance import Maintenance
from evertide.sources.generated.seeded import RandomStream
from evertide.store.open import Storage
from evertide.store.writers import read_registrations
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.pipeline.kit import Row, rows_of, storage
from tests.pipeline.sink_kit import Killed
from tests.pipeline.test_replica_faults import ALL, QUICK, retry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));
CREATE TABLE notes (text STRING);
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW noted AS SELECT o.id, n.text FROM orders o JOIN notes n ON n.text = concat('n', o.id);
CREATE MATERIALIZED VIEW ranked AS
  SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS place FROM orders;
CREATE MATERIALIZED VIEW share AS SELECT id, 100 div amount AS share FROM orders;
"""
SETTINGS = replace(QUICK, retry_view_s=1e-6, writer_ttl_s=3600.0, lease_ttl_s=3600.0)
"""Without threads there are no heartbeats: a replica that waits for its turn on a busy machine must not count
as dead."""


class _Kept(Storage):
    """One storage for both replicas and their successors."""

    def close(self) -> None:
        pass


@dataclass
class Replicas:
    """Two replicas, and their expected content."""

    spark: SparkSession
    chance: RandomStream
    percent: int = 4
    """The share of storage calls that fail."""
    killed: int = 0
    below: Storage = field(default_factory=storage)
    several: dict[int, Pipeline] = field(default_factory=dict)
    orders: dict[int, Row] = field(default_factory=dict)
    pushed: int = 0
    faults: list[Faults] = field(default_factory=list)

    def start(self, at: int) -> None:
        some = Faults(self._chosen(ALL, kills=True), self._chosen((Fault.REFUSED,)))
        seen = _Kept(FaultyBlob(self.below.blob, some), FaultyMeta(self.below.meta, some), "memory")
        self.faults.append(some)
        self.several.pop(at, None)
        while at not in self.several:
            self._end_the_dead()
            made = SparkEngine(open_session(self.spark, None), SCRIPT)
            with suppress(Killed):
                self.several[at] = Pipeline(
                    made,
                    seen,
                    base=Path(),
                    runtime=SystemRuntime(),
                    settings=SETTINGS,
                    threads=False,
                    role=ProcessRole.REPLICA,
                )

    def _chosen(self, kinds: Sequence[Fault], *, kills: bool = False) -> Callable[[str, str], Fault]:
        def chosen(_operation: str, _key: str) -> Fault:
            if kills and self.percent and self.chance.below(300) == 0:
                self.killed += 1
                raise Killed
            return kinds[self.chance.below(len(kinds))] if self.chance.below(100) < self.percent else Fault.DONE

        return chosen

    def _end_the_dead(self) -> None:
        """End their registrations, as their silence would."""
        alive = {one._writer.id for one in self.several.values()}
        for name, known in read_registrations(self.below.meta).items():
            if name not in alive:
                end_registration(self.below.meta, known, SystemRuntime(), SETTINGS)

    def does(self, at: int, call: Callable[[Pipeline], object]) -> bool:
        """Return False if the replica was killed; another one then replaces it."""
        try:
            retry(lambda: call(self.several[at]))
        except Killed:
            self.start(at)
            return False
        return True

    def push(self, at: int) -> None:
        number, amount = self.chance.below(12), self.chance.below(20)
        row = {"id": number, "customer": f"c{number % 3}", "amount": amount}
        is_gone = self.chance.below(4) == 0
        self.pushed += 1

        def push_once(p: Pipeline) -> None:
            with p.transaction("till", self.pushed) as given:
                given.push("orders", [] if is_gone else [row], deletes=[{"id": number}] if is_gone else [])
                given.push("notes", [{"text": f"n{self.pushed}"}])
            p.take(given)

        while not self.does(at, push_once):
            at = 1 - at
        self.orders.pop(number, None)
        if not is_gone:
            self.orders[number] = row

    def step(self) -> None:
        at = self.chance.below(2)
        match self.chance.below(10):
            case 0:
                self.start(at)
            case 1:
                self.does(at, lambda p: p.try_checkpoint())
            case 2:
                self.does(at, maintain)
            case 3 | 4:
                self.does(at, lambda p: p.advance())
            case _:
                self.push(at)

    def check(self) -> None:
        self.percent = 0
        while not any(one.leads for one in self.several.values()):
            for one in self.several.values():
                one.advance()
        self.orders[99] = {"id": 99, "customer": "c0", "amount": 5}  # changes the rows that failed
        for row in [*self.orders.values()]:
            row["amount"] = row["amount"] or 1  # no division by zero is left
        self.several[0].push("orders", [*self.orders.values()])
        self.several[0].commit()
        for _ in range(3):
            for one in self.several.values():
                one.advance()
        for one in self.several.values():
            last = one._context.journal.committed_upper - 1
            while one.time < last or one.definition.list_away(ComponentState.FAILED):
                one.advance()
            assert one.status().state == "running"
            assert rows_of(one, "orders") == sorted((tuple(row.values()) for row in self.orders.values()), key=repr)
            notes = [f"n{number + 1}" for number in range(self.pushed)]
            assert rows_of(one, "notes") == sorted(((note,) for note in notes), key=repr)
            for name, expected in views_of([*self.orders.values()], notes).items():
                assert rows_of(one, name) == sorted(expected, key=repr), name


def maintain(p: Pipeline) -> None:
    if p.leads:
        with suppress(GenerationMoved):  # by the other replica: the maintenance thread waits for its next turn
            Maintenance(p._context.shards, p._writer, p._context.checkpoints.find_pins).run_once()
            p._leader_tasks.checkpointer.collect_garbage()


def views_of(orders: Sequence[Row], notes: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    revenue: Counter[str] = Counter()
    places: Counter[str] = Counter()
    ranked = []
    for row in sorted(orders, key=lambda row: (row["amount"], row["id"])):
        revenue[row["customer"]] += row["amount"]
        places[row["customer"]] += 1
        ranked.append((row["id"], places[row["customer"]]))
    return {
        "revenue": [*revenue.items()],
        "ranked": ranked,
        "noted": [(row["id"], f"n{row['id']}") for row in orders if f"n{row['id']}" in notes],
        "share": [(row["id"], 100 // row["amount"]) for row in orders],
    }


@contextmanager
def replicas(spark: SparkSession, seed: int) -> Iterator[Replicas]:
    made = Replicas(spark, RandomStream(seed))
    for at in range(2):
        made.start(at)
    try:
        yield made
    finally:
        made.percent = 0
        for one in made.several.values():
            one.close(checkpoint=False)


def run(spark: SparkSession, seed: int, steps: int) -> Replicas:
    with replicas(spark, seed) as made:
        for _ in range(steps):
            made.step()
        made.check()
    return made


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
def test_u1_two_replicas_with_views_on_spark_apply_each_push_once(spark: SparkSession, seed: int) -> None:
    made = run(spark, seed, 40)
    assert {*ALL} <= {kind for some in made.faults for kind in some.injected}
