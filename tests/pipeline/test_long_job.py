"""X10: a long Spark job is not a hang of the leader as long as its tasks end; a task that does not end is one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.functions import udf

import evertide as et
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import open_session
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.metrics.test_liveness import Clock
from tests.pipeline.test_threads import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2 * ROWS_SMALL_MAX
SETTINGS = Settings(hang_after_s=600.0)


def gated(gate: Path) -> Any:
    """Return a function whose first row in each task takes a ticket, and waits until there is one."""
    known: list[int] = []

    def take(a: int) -> int:
        runtime, context = SystemRuntime(), TaskContext.get()
        assert context is not None
        if context.taskAttemptId() not in known:
            known.append(context.taskAttemptId())
            (gate / f"began-{runtime.new_id()}").touch()
            while not (gate / "open").exists():
                try:
                    next(gate.glob("ticket-*")).unlink()
                    break
                except (StopIteration, FileNotFoundError):
                    runtime.sleep_s(0.01)
        return a

    return udf(take, "long", useArrow=False)


def test_x10_a_leader_keeps_the_lead_as_long_as_its_spark_tasks_end(spark: SparkSession, tmp_path: Path) -> None:
    """If the end of Spark tasks were no progress, a long job would lose the lead; if time were progress, a hang would
    keep it."""
    gate = tmp_path / "gate"
    gate.mkdir()
    held = gated(gate)

    @et.materialized_view
    def copied(session: SparkSession) -> DataFrame:
        first, *others = [session.table("t").select((held("a") + shift).alias("a")) for shift in range(3)]
        for other in others:
            first = first.unionAll(other)
        return first

    clock = Clock()
    engine = SparkEngine(open_session(spark), "CREATE TABLE t (a BIGINT)", "", [copied])
    storage = open_storage(tmp_path / "s", runtime=clock, settings=SETTINGS)
    role = ProcessRole.REPLICA
    with (
        Pipeline(engine, storage, base=tmp_path, runtime=clock, settings=SETTINGS, threads=False, role=role) as p,
        ThreadPoolExecutor() as pool,
    ):

        def beats() -> bool:
            """Whether a heartbeat is written now."""
            before = p._writer._beats
            p._writer.beat()
            return p._writer._beats > before

        p.push("t", [{"a": a} for a in range(ROWS)])
        commit = pool.submit(p.commit)
        try:
            for ended in range(4):
                wait_until(lambda ended=ended: len([*gate.glob("began-*")]) >= 2 + ended)  # type: ignore[misc]
                before = engine.activity()
                (gate / f"ticket-{ended}").touch()
                wait_until(lambda before=before: engine.activity() != before)  # type: ignore[misc]
                clock.now_s += 0.95 * SETTINGS.hang_after_s
                assert (p.liveness.report().why, beats()) == ("", True)
            assert p.liveness.report().since_s > 3 * SETTINGS.hang_after_s
            wait_until(lambda: str(engine.activity()).endswith(", 2, 4)]"))  # two tasks are running, four have ended
            clock.now_s += 0.95 * SETTINGS.hang_after_s
            assert beats()  # tasks ended within that time
            clock.now_s += SETTINGS.hang_after_s + 1
            assert not beats()
            assert "no step in phase 'compute'" in p.liveness.report().why
        finally:
            (gate / "open").touch()
        assert commit.result() == 1
        assert (p.liveness.report().why, beats()) == ("", True)
        assert p.view("copied").to_arrow().num_rows == 3 * ROWS
