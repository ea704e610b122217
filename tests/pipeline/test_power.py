"""A power cut at every storage operation of a pipeline: transactions, checkpoints, compaction, garbage collection.

After each cut the machine boots, a new process opens the pipeline, and finds the acknowledged transactions, or these
and the one that was in flight. The process then repeats the same work; it recognises repeated pushes, and ends with
exactly the content of an undisturbed run. An engine without Spark stands in for the real one, with real state.

`make test` tries a sample of the operations, as each costs two pipelines; `EVERTIDE_POWER=full` tries all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import Session
from evertide.sources.generated.seeded import RandomStream
from evertide.store import LocalBlob
from evertide.store.open import Storage
from tests.kit.cuts import SURVIVORS, CutsFailed, every_cut
from tests.kit.disk import SimulatedDisk, Survivors
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import SETTINGS, Row, engine, open_pipeline, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = os.environ.get("EVERTIDE_POWER") == "full"
SMALL = replace(SETTINGS, inline_bytes_max=1, rollup_every_diffs=5, retry_view_s=1e9)
TTL_S = 60.0
VIEWS = ("revenue", "counts", "share")


def order(number: int, customer: str, amount: int) -> Row:
    return {"id": number, "customer": customer, "amount": amount}


PUSHES: list[dict[str, tuple[list[Row], list[int]]]] = [
    {"orders": ([order(1, "ann", 10), order(2, "bob", 20)], []), "notes": ([{"text": "a"}], [])},
    {"orders": ([order(1, "ann", 15)], [2])},
    {"notes": ([{"text": "b"}, {"text": "b"}], [])},
    {"orders": ([order(3, "cid", 30), order(4, "ann", 40)], [1])},
    {"orders": ([order(3, "ann", 33)], []), "notes": ([{"text": "c"}], [])},
    {"orders": ([order(5, "eve", 5)], [4])},
]


def open_on(disk: SimulatedDisk) -> Pipeline:
    storage = Storage(LocalBlob(disk.root, disk.files), disk.meta, "disk")
    return open_pipeline(storage, engine(*VIEWS), runtime=disk.runtime, settings=SMALL)


def push(p: Pipeline, number: int) -> None:
    with p.transaction("till", number) as pushed:
        for table, (rows, deletes) in PUSHES[number - 1].items():
            pushed.push(table, rows, deletes=deletes)
    p.commit()


def work(p: Pipeline, acknowledge: Callable[[int], None] = lambda _: None) -> None:
    """Do all of the work, including what was done before a cut."""
    for number in range(1, len(PUSHES) + 1):
        push(p, number)
        acknowledge(number)
        if number in (2, 4, 5):
            p.checkpoint()
        if number in (3, 5):
            for shard in p._runner.members.open_all().values():
                shard.compact(p._writer)
                shard.collect_garbage(p._writer, p._context.checkpoints.find_pins)
            while p._runner.machine.maintain():
                pass
            p._leader_tasks.checkpointer.collect_garbage()


def content(p: Pipeline) -> dict[str, list[tuple[object, ...]]]:
    return {name: rows_of(p, name) for name in ("orders", "notes", *VIEWS)}


def expected() -> list[dict[str, list[tuple[object, ...]]]]:
    """Return the content after each number of pushes, on a disk that never fails."""
    p = open_on(SimulatedDisk(ManualRuntime(seed=5)))
    found = [content(p)]
    for number in range(1, len(PUSHES) + 1):
        push(p, number)
        found.append(content(p))
    return found


def workload(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
    work(open_on(disk), acknowledge)


def make_check(ends: list[dict[str, list[tuple[object, ...]]]]) -> Callable[[SimulatedDisk, list[int]], None]:
    def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
        disk.runtime.advance_s(TTL_S + 1)
        p = open_on(disk)
        done = acknowledged[-1] if acknowledged else 0
        assert content(p) in ends[done : done + 2], f"after {done} acknowledged pushes"
        work(p)
        assert content(p) == ends[-1]
        numbers = [bound.time for bound in p._context.journal.read_from(p._context.checkpoints.entries()[-1].time)]
        assert numbers == sorted(set(numbers))
        p.close()

    return check


def build() -> SimulatedDisk:
    return SimulatedDisk(ManualRuntime(seed=1))


SAMPLES: list[tuple[Survivors, int]] = [("none", 29), ("all", 191), ("names", 173), (1, 157), (2, 181)]


@pytest.mark.parametrize(("survivors", "every"), [(kind, 1) for kind in SURVIVORS] if FULL else SAMPLES, ids=str)
def test_power_cut_at_every_operation(survivors: Survivors, every: int) -> None:
    cases = every_cut(build, workload, make_check(expected()), survivors=[survivors], every=every, repeatable=False)
    assert cases > 9


def test_the_check_detects_rows_acknowledged_before_they_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acknowledgement that comes before the transaction is durable is lost with the power (I7)."""

    def hasty(disk: SimulatedDisk, acknowledge: Callable[[int], None]) -> None:
        p = open_on(disk)
        for number in range(1, 4):
            acknowledge(number)
            push(p, number)

    with pytest.raises(CutsFailed, match="acknowledged pushes"):
        every_cut(build, hasty, make_check(expected()), survivors=["none"], every=29, repeatable=False)


SPARK_SHOP = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));
CREATE TABLE notes (text STRING);
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW counts AS
SELECT (SELECT count(*) FROM orders) AS orders, (SELECT count(*) FROM notes) AS notes;
CREATE MATERIALIZED VIEW share AS SELECT id, 100 DIV amount AS share FROM orders WHERE amount IS NOT NULL;
"""


def cut_with_spark(spark: SparkSession, seed: int) -> int:
    """Do the same work on the real engine, cut at a few points by seed; it ends with the content of the small engine.
    Returns the number of cuts."""
    every, chance = 50 if FULL else 600, RandomStream(seed)

    def open_on_spark(disk: SimulatedDisk) -> Pipeline:
        kept = Storage(LocalBlob(disk.root, disk.files), disk.meta, "disk")
        shop = SparkEngine(Session(spark, is_own=False), SPARK_SHOP)
        return Pipeline(shop, kept, base=Path(), runtime=disk.runtime, settings=SMALL, threads=False)

    ends = expected()

    def check(disk: SimulatedDisk, acknowledged: list[int]) -> None:
        disk.runtime.advance_s(TTL_S + 1)
        p = open_on_spark(disk)
        done = acknowledged[-1] if acknowledged else 0
        assert content(p) in ends[done : done + 2]
        work(p)
        assert content(p) == ends[-1]
        p.close()

    return every_cut(
        build,
        lambda disk, acknowledge: work(open_on_spark(disk), acknowledge),
        check,
        survivors=[SURVIVORS[chance.below(len(SURVIVORS))]],
        every=every,
        offset=chance.below(every),
        repeatable=False,
    )


def test_power_cuts_with_spark_itself(spark: SparkSession) -> None:
    """`tests/soak` has other seeds."""
    assert cut_with_spark(spark, 1) >= 4
