"""X1, X12, X15: wide steps while storage fails, tasks are repeated, processes are killed, and transactions continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import evertide as et
from evertide.checkpoint.verification import read_manifest
from evertide.pipeline.engine import StateStore
from evertide.pipeline.state import wide_hydration
from evertide.plan.catalyst.jobs import Jobs
from evertide.problem import ComponentState
from evertide.store.blobs.local import LocalBlob
from evertide.store.paths import Name, part_prefix, state_prefix
from tests.pipeline.test_wide import (
    TABLES,
    VIEWS,
    always_on_executors,
    count_wide_runs,
    list_state,
    push_orders,
    read,
)
from tests.pipeline.wide_faults import CONTENT, EXCHANGED, STATE, Control, Rule
from tests.pipeline.wide_worker import opened
from tests.processes import running
from tests.server.kit import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)  # Spark jobs on a machine that may be loaded
LIMIT_S = 300.0
REVENUE = f"CREATE MATERIALIZED VIEW revenue AS {VIEWS['revenue']};\n"


@pytest.fixture(autouse=True)
def _on_executors() -> Iterator[None]:
    with always_on_executors():
        yield


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "shop.evertide"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    folder = tmp_path / "control"
    folder.mkdir()
    made = Control(folder)
    try:
        yield made
    finally:
        made.clear()


def fill(storage: Path, control: Control, spark: SparkSession, script: str = TABLES) -> None:
    with opened(storage, control, spark, script, threads=False) as p:
        push_orders(p)


def wait_until_hydrated(p: et.Pipeline) -> None:
    """A pipeline that advances starts a backfill again."""
    until(lambda: p.advance() or p.wait_until_hydrated(LIMIT_S))


def check(p: et.Pipeline, views: tuple[str, ...] = tuple(VIEWS)) -> None:
    """Check that views equal their queries."""
    assert not p.definition.list_away(ComponentState.FAILED)
    for name in views:
        expected = sorted((tuple(row.values()) for row in p.query(VIEWS[name]).to_pylist()), key=repr)
        assert read(p, name) == expected, name


def check_after_deletion(p: et.Pipeline) -> None:
    """Rows that state or content have twice would be left when the tables' rows are deleted."""
    check(p)
    p.push("orders", deletes=[row["id"] for row in p.view("orders").to_pylist()])
    p.commit()
    for name in VIEWS:
        assert read(p, name) == [], name


def collect_garbage(p: et.Pipeline) -> None:
    p._leader_tasks.checkpointer.collect_garbage()
    shards = p._runner.members.shards
    for shard in [shards.open(name) for name in shards.names()]:
        shard.collect_garbage(p._writer, p._context.checkpoints.find_pins)


def list_used(p: et.Pipeline, storage: Path) -> set[str]:
    """The state parts that this process or a checkpoint uses."""
    blob = LocalBlob(storage)
    saved = {key for entry in p._context.checkpoints.entries() for key in read_manifest(blob, entry).names()}
    return {part.key for part in p._runner.machine.parts()} | {key for key in saved if key.startswith(state_prefix())}


def list_content(storage: Path) -> set[str]:
    return {entry.key for entry in LocalBlob(storage).list(part_prefix())}


def list_named(p: et.Pipeline) -> set[str]:
    """The parts that shards have."""
    shards = p._runner.members.open_all().values()
    return {part.key for shard in shards for part in shard.log.read().state.parts}


FAULTS = [("unavailable", "put"), ("unavailable", "get_range"), ("unknown", "put"), ("damaged", "get_range")]


@pytest.mark.parametrize("fault", FAULTS, ids="-".join)
def test_x15_a_step_is_tried_again_after_a_storage_error_in_a_task(
    spark: SparkSession,
    storage: Path,
    control: Control,
    monkeypatch: pytest.MonkeyPatch,
    fault: tuple[str, str],
) -> None:
    """The fault ends before the second probe, so that the second try succeeds."""
    fill(storage, control, spark)
    does, call = fault
    control.set_rules(Rule(does, call, EXCHANGED))
    probe, probes = wide_hydration._probe, iter(range(9))

    def clear_and_probe(jobs: Jobs, store: StateStore) -> str:
        if next(probes) == 1:
            control.clear()
        return probe(jobs, store)

    monkeypatch.setattr(wide_hydration, "_probe", clear_and_probe)
    with opened(storage, control, spark) as p:
        wait_until_hydrated(p)
        assert control.read_events(does)
        assert next(probes) == 2, "two tries"
        assert count_wide_runs(p) > 0
        check_after_deletion(p)
        assert not list_state(storage, exchanged=True)
        collect_garbage(p)
        assert list_state(storage) <= list_used(p, storage)


def test_x15_the_driver_computes_views_if_tasks_cannot_use_the_storage(
    spark: SparkSession, storage: Path, control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    """No view is blamed, and none waits for executors that will never work."""
    fill(storage, control, spark)
    control.set_rules(Rule("unavailable", "put", EXCHANGED))
    with opened(storage, control, spark) as p:
        wait_until_hydrated(p)
        assert caplog.text.count("executors could not compute") == 2
        assert count_wide_runs(p) == 0
        check_after_deletion(p)
        assert not p.definition.list_away(ComponentState.FAILED)
        collect_garbage(p)
        assert list_state(storage) <= list_used(p, storage)


@pytest.mark.parametrize("does", ["unavailable", "damaged"])
def test_x15_a_storage_error_in_what_catalyst_reads_fails_no_view(
    spark: SparkSession, storage: Path, control: Control, does: str
) -> None:
    """Spark reports it as an error of its own, so the driver computes the views."""
    fill(storage, control, spark)
    control.set_rules(Rule(does, "get", CONTENT, below="read_leaf"))
    with opened(storage, control, spark, threads=False) as p:
        assert p.wait_until_hydrated(LIMIT_S)
        assert control.read_events(does)
        check_after_deletion(p)


def test_x15_blobs_of_failed_attempts_are_not_used_and_deleted(
    spark: SparkSession, storage: Path, control: Control
) -> None:
    """Each task that is the first to write such a blob fails after that, and is repeated."""
    fill(storage, control, spark)
    control.set_rules(*(Rule("break", "put", key, 1) for key in (EXCHANGED, STATE, CONTENT)))
    with opened(storage, control, spark, threads=False) as p:
        assert p.wait_until_hydrated(LIMIT_S)
        assert count_wide_runs(p) > 0
        failed = {event.key for event in control.read_events("break")}
        assert len(failed) == 3
        left = failed & (list_state(storage) | list_content(storage))
        assert len(left) == 2  # all but exchanged rows, which the end of the step deletes
        collect_garbage(p)
        assert not failed & (list_state(storage) | list_content(storage))
        assert list_state(storage) == list_used(p, storage)
        assert list_content(storage) == list_named(p) - {""}
        check_after_deletion(p)


@pytest.mark.parametrize(
    "held",
    [Rule("hold", "put", EXCHANGED, 1), Rule("hold", "get_range", EXCHANGED, 1), Rule("hold", "put", CONTENT, 1)],
    ids=lambda rule: f"{rule.call} {rule.key}",
)
def test_j1_a_process_that_is_killed_in_a_wide_step_leaves_nothing(
    spark: SparkSession, storage: Path, control: Control, held: Rule
) -> None:
    fill(storage, control, spark)
    control.set_rules(held)
    with running("tests.pipeline.wide_worker", storage, control.folder) as worker:
        until(lambda: control.read_events("hold"))
        assert "hydrated" not in worker.kill()
    [event] = control.read_events("hold")
    dead = Name.parse(event.key)
    assert dead is not None
    control.clear()
    with opened(storage, control, spark, threads=False) as p:
        assert p.wait_until_hydrated(LIMIT_S)
        assert dead.writer != p._writer.id
        until(lambda: has_no_orphans_of(dead.writer, p, storage))
        assert not list_state(storage, exchanged=True)
        assert list_state(storage) == list_used(p, storage)
        check_after_deletion(p)


def has_no_orphans_of(writer: str, p: et.Pipeline, storage: Path) -> bool:
    """After a garbage collection. The writer is registered until it has been silent for `writer_ttl_s`."""
    collect_garbage(p)
    names = [Name.parse(key) for key in list_state(storage) | (list_content(storage) - list_named(p))]
    return not any(name is not None and name.writer == writer for name in names)


def test_x1_transactions_continue_while_a_wide_step_runs(spark: SparkSession, storage: Path, control: Control) -> None:
    """One task waits in the middle of the step, so that transactions have the other core. Meanwhile a checkpoint,
    compactions and garbage collections need to delete nothing of the step."""
    fill(storage, control, spark, TABLES + REVENUE)
    control.set_rules(Rule("hold", "get_range", EXCHANGED, 1))
    with opened(storage, control, spark) as p, ExitStack() as ending:
        ending.callback(control.clear)  # the pipeline closes after the task has ended
        until(lambda: control.read_events("hold"))
        before = list_state(storage, exchanged=True)
        assert before
        for number in range(4):
            change(p, number)
            check(p, ("revenue",))
        p.checkpoint()
        for shard in p._runner.members.open_all().values():
            shard.compact(p._writer)
        collect_garbage(p)
        assert before <= list_state(storage, exchanged=True)
        control.clear()
        assert p.wait_until_hydrated(LIMIT_S)
        assert len(control.read_events("hold")) == 1
        assert count_wide_runs(p) > 0
        check(p)
        for number in range(4, 7):
            change(p, number)
            check(p)
        p.checkpoint()
        check_after_deletion(p)


def change(p: et.Pipeline, number: int) -> None:
    """Rows are added, replaced and deleted."""
    ids = (7 + number, 100 + number)
    orders = [{"id": i, "customer": f"c{i % 3}", "amount": 2000 + i * number} for i in ids]
    p.push("orders", orders, deletes=[20 + number, 98 + number])
    p.push("notes", [{"text": f"n{7 + number}"}, {"text": None}])
    p.commit()
