"""Pipelines under load, for a share of `EVERTIDE_SOAK_MINUTES`: kills, failing storage, changing scripts.

Each round has a storage of its own: a worker is started with some views, killed after some transactions, and started
again with other views, with or without faults. At the end all views are compared with a recomputation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.sources.generated.seeded import RandomStream
from tests.kit.faulty import Fault
from tests.pipeline.test_kill import check, run_and_kill
from tests.pipeline.test_lost_answers import CALLS, Outage, calls_of
from tests.pipeline.test_portions import check_views, large_transaction
from tests.pipeline.test_power import cut_with_spark
from tests.pipeline.test_replica_processes import Replica, kill_repeatedly
from tests.pipeline.test_replica_processes import check as check_replicas
from tests.pipeline.test_replica_spark import run as run_on_spark
from tests.pipeline.test_views_under_load import churn
from tests.soak.rounds import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = ("both,total", "both-2,total", "total", "total,highest", "both,total,highest")


def one_round(storage: Path, kind: str, kills: int, seed: int) -> str:
    rng = RandomStream(seed)
    last, views = 0, SCRIPTS[0]
    for _ in range(kills):
        views = SCRIPTS[rng.below(len(SCRIPTS))]
        faults = 0.02 if rng.below(3) == 0 else 0.0
        began, acknowledged = run_and_kill(storage, kind, rng.below(30), views, faults)
        assert began >= last, "an acknowledged transaction was lost"
        last = acknowledged[-1] if acknowledged else began
    check(storage, kind, last, views)
    return f"{kind}, {kills} kills, {last} transactions"


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_pipelines_that_are_killed(tmp_path: Path, soak: Soak, spark: object) -> None:
    def run_round(seed: int) -> str:
        kind, kills = ("spark", 3) if seed % 5 == 0 else ("small", 12)
        return one_round(tmp_path / str(seed), kind, kills, seed)

    soak.rounds("pipeline", run_round)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_power_cuts_with_spark(soak: Soak, spark: SparkSession) -> None:
    soak.rounds("power cuts with Spark", lambda seed: f"{cut_with_spark(spark, seed)} cuts")


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_x1_views_are_added_and_dropped_during_transactions(tmp_path: Path, soak: Soak, spark: SparkSession) -> None:
    def run_round(seed: int) -> str:
        rows = (600, 3_000, 40_000)[seed % 3]
        beside = churn(spark, tmp_path / str(seed), seed=seed, rounds=6, rows=rows)
        return f"{rows} rows, {beside} transactions beside backfills"

    soak.rounds("x1", run_round)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_replicas_that_are_killed(tmp_path: Path, soak: Soak) -> None:
    def run_round(seed: int) -> str:
        place = tmp_path / str(seed)
        place.mkdir()
        faults = 0.01 if seed % 2 else 0.0
        reached = kill_repeatedly(lambda: Replica(place, faults=faults), 10, seed)
        check_replicas(place, reached)
        return f"10 kills, {reached} transactions"

    soak.rounds("replicas", run_round)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_t7_two_gib_of_changes_within_one_gib_of_memory(tmp_path: Path) -> None:
    rows, portions, grown_mib = large_transaction(tmp_path, 2048, 64)
    assert rows == 2048 * 1024
    assert portions > 30
    assert grown_mib < 1024


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_t7_a_gib_of_changes_with_spark_in_half_a_gib_of_heap(tmp_path: Path) -> None:
    """The heap is a bound: as one portion, a fifth of the changes does not fit."""
    (tmp_path / "whole").mkdir()
    with pytest.raises(AssertionError, match="SparkEnded"):
        large_transaction(tmp_path / "whole", 200, 10**6, 512)
    rows, portions, grown_mib = large_transaction(tmp_path, 1024, 24, 512)
    assert rows == 1024 * 1024
    assert portions > 40
    assert grown_mib < 512
    check_views(tmp_path, 1024)


def test_a_short_round(tmp_path: Path) -> None:
    """In every test run: views change, storage fails, the process is killed."""
    one_round(tmp_path / "s", "small", 4, 3)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_replicas_on_spark(soak: Soak, spark: SparkSession) -> None:
    def run_round(seed: int) -> str:
        run = run_on_spark(spark, seed, 60)
        return f"{run.pushed} pushes, {run.killed} kills"

    soak.rounds("replicas on Spark", run_round)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_storage_in_doubt(soak: Soak) -> None:
    def run_round(seed: int) -> str:
        rng = RandomStream(seed)
        fault = (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED)[rng.below(3)]
        at, count = 1 + rng.below(CALLS), 1 + rng.below(6)
        try:
            calls_of(Outage(fault, at, count))
        except BaseException as error:
            error.add_note(f"{fault}, from call {at} on, {count} of them")
            raise
        return f"{fault.name} at {at}, {count}"

    soak.rounds("storage in doubt", run_round)
