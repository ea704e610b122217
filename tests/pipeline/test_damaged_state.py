"""State parts that are damaged or gone when a step, a merge or the scrub reads them: opening does not read them.

The views are compared with their queries after each transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import BlobDamaged, BlobMissing, Unavailable
from evertide.flow.state.spine import ArrangementSettings
from evertide.pipeline.maintenance.scrub import Scrub
from evertide.pipeline.maintenance.state_maintenance import StateMaintenance
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.state.hydration import rehydrate_tables
from evertide.pipeline.state.table_deltas import TableDeltas
from evertide.runtime import SystemRuntime
from evertide.store.open import Storage
from evertide.store.paths import state_prefix
from evertide.threads.stopping import never_stopping
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, crash, engine, open_pipeline, rows_of, storage, without_shard
from tests.pipeline.test_damaged_checkpoint import order, replace_blob
from tests.shard.hosts import HookedBlob

WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "flipped": lambda content: bytes([*content[:20], content[20] ^ 1, *content[21:]]),
    "short": lambda content: content[: len(content) // 2],
    "foreign": lambda _: b"another file",
}


def fill(kept: Storage, first: int = 0, **options: object) -> None:
    """Push one order per transaction, with two checkpoints, and end the process."""
    pipeline = open_pipeline(kept, **options)  # type: ignore[arg-type]
    for number in range(first, first + 4):
        pipeline.push("orders", [order(number)])
        pipeline.commit()
        if number % 2:
            pipeline.checkpoint()
    crash(pipeline)


def table_parts(kept: Storage) -> list[str]:
    """The parts with the rows of `orders` by key."""
    return [entry.key for entry in kept.blob.list(state_prefix()) if "/orders.keyed" in entry.key]


def view_parts(kept: Storage) -> list[str]:
    """The parts of the views."""
    return [entry.key for entry in kept.blob.list(state_prefix()) if "/small." in entry.key]


def damage(kept: Storage, keys: list[str], way: str) -> None:
    assert keys
    for key in keys:
        replace_blob(kept, key, WAYS[way])


def check(pipeline: Pipeline, expected: int) -> None:
    assert pipeline.wait_until_hydrated(20)
    assert rows_of(pipeline, "orders") == [(number, "a", 10) for number in range(expected)]
    assert rows_of(pipeline, "revenue") == [("a", 10 * expected)]
    assert rows_of(pipeline, "counts") == [(expected, 0)]


def push(pipeline: Pipeline, *numbers: int) -> None:
    pipeline.push("orders", [order(number) for number in numbers])
    pipeline.commit()


def push_one_by_one(pipeline: Pipeline, *numbers: int) -> None:
    """One transaction, with a fragment of its input per order."""
    for number in numbers:
        pipeline.push("orders", [order(number)])
    pipeline.commit()


def test_opening_reads_no_state_part() -> None:
    kept = storage()
    fill(kept)
    read: list[str] = []
    hooked = HookedBlob(kept.blob, lambda operation, key: read.append(key) if operation.startswith("get") else None)
    pipeline = open_pipeline(storage(hooked, kept.meta))
    assert read
    assert not [key for key in read if key.startswith(state_prefix())]
    push(pipeline, 1, 4)
    assert [key for key in read if key.startswith(state_prefix())], "the state of this test is in parts"
    check(pipeline, 5)
    pipeline.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", [table_parts, view_parts])
def test_state_with_a_damaged_part_is_computed_again(parts: Callable[[Storage], list[str]], way: str) -> None:
    """Fails if the state of tables is not read again: the pipeline freezes at the first transaction."""
    kept = storage()
    fill(kept)
    damage(kept, parts(kept), way)
    pipeline = open_pipeline(kept)
    push(pipeline, 0, 4)  # looks up an old key
    check(pipeline, 5)
    push(pipeline, 5)
    check(pipeline, 6)
    assert pipeline.status().state == "running"
    assert {problem.error_code for problem in pipeline.status().problems} == {"checkpoint_damaged"}
    pipeline.checkpoint()
    assert all("a newer one has replaced it" in problem.why for problem in pipeline.status().problems)
    crash(pipeline)
    again = open_pipeline(kept)
    push(again, 3, 6)
    check(again, 7)
    assert again.status().problems == ()
    again.close()


@pytest.mark.parametrize("way", WAYS)
def test_table_state_that_is_damaged_in_a_later_portion_has_the_earlier_portions(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the rows of earlier portions are missing after the table was read again: key 2 would be there twice."""
    kept = storage()
    fill(kept)
    pipeline = open_pipeline(kept, settings=replace(SETTINGS, portion_rows_max=1, push_buffer_bytes=1))
    lookups = 0
    arrangement = pipeline._runner.machine.tables._by_key["orders"]
    lookup = arrangement.lookup

    def count_and_look_up(keys: object) -> object:
        nonlocal lookups
        lookups += 1
        if lookups == 3:
            damage(kept, table_parts(kept), way)
            pipeline._runner.machine.store.cache.bytes_max = 0
            for part in arrangement.parts():
                pipeline._runner.machine.store.cache.drop(part.key, part.row_groups)
        return lookup(keys)

    monkeypatch.setattr(arrangement, "lookup", count_and_look_up)
    for number in (5, 4, 2, 5):
        pipeline.push("orders", [order(number)])
    pipeline.commit()
    assert lookups == 3, "the third portion looks up key 2, and finds the damage"
    check(pipeline, 6)
    push(pipeline, 2, 4, 5, 6)
    check(pipeline, 7)
    pipeline.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", [table_parts, view_parts])
def test_a_replay_in_portions_that_finds_damage_goes_on(parts: Callable[[Storage], list[str]], way: str) -> None:
    """Seen to fail: no process could open the pipeline, as each found the same damage."""
    kept, small = storage(), replace(SETTINGS, portion_rows_max=1, push_buffer_bytes=1)
    fill(kept)
    pipeline = open_pipeline(kept, settings=small)
    push_one_by_one(pipeline, 5, 4, 2, 5)
    crash(pipeline)
    damage(kept, parts(kept), way)
    again = open_pipeline(kept, settings=small)
    check(again, 6)
    push_one_by_one(again, 2, 4, 5, 6)
    check(again, 7)
    assert again.status().state == "running"
    again.close()


@pytest.mark.parametrize("is_away", [False, True])
def test_a_follower_that_finds_damage_in_a_later_portion_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    """Fails if the follower's tables lack the earlier portions: its views differ, and lose their state.

    If storage is away while the tables are read again, the next try has the same result.
    """
    kept, small = storage(), replace(SETTINGS, portion_rows_max=1, push_buffer_bytes=1)
    fill(kept)
    leader = open_pipeline(kept, role=ProcessRole.REPLICA, settings=small)
    follower = open_pipeline(kept, role=ProcessRole.REPLICA, settings=small)
    push_one_by_one(leader, 5, 4, 2, 5)
    forget_in_third_portion(follower, kept, monkeypatch)
    cohorts = [*follower._runner.machine.cohorts]
    if is_away:
        with monkeypatch.context() as patch:
            patch.setattr("evertide.pipeline.state.hydration.hydrate_tables", refuse)
            with pytest.raises(Unavailable):
                follower.advance()
    follower.advance()
    check(follower, 6)
    assert follower._runner.machine.cohorts == cohorts
    push_one_by_one(leader, 6, 2, 5)
    follower.advance()
    for pipeline in (leader, follower):
        check(pipeline, 7)
        assert pipeline.status().state == "running"
    crash(leader)
    follower.close()


def test_parts_that_replaced_table_state_released_are_deleted() -> None:
    """Fails if only the parts in use are: those that a merge replaced would stay until the process ends."""
    kept = storage()
    fill(kept)
    pipeline = open_pipeline(kept)
    machine, members = pipeline._runner.machine, pipeline._runner.members
    tables = machine.tables
    used = [part.key for one in tables.list_arrangements() for part in one.parts()]
    machine.drain_released()
    next(tables.list_arrangements()).released.append("merged before")
    assert rehydrate_tables(machine, members)
    assert machine.tables is not tables
    assert sorted(machine.drain_released()) == sorted([*used, "merged before"])
    crash(pipeline)


def test_a_recomputation_that_storage_interrupts_is_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail: the interrupted one counted as a divergence, so that the follower waited for `retry_view_s`."""
    kept, patient = storage(), replace(SETTINGS, retry_view_s=1000.0)
    fill(kept)
    leader = open_pipeline(kept, role=ProcessRole.REPLICA, settings=patient)
    follower = open_pipeline(kept, role=ProcessRole.REPLICA, settings=patient)
    push(leader, 4)
    damage(kept, view_parts(kept), "flipped")
    with monkeypatch.context() as patch:
        patch.setattr("evertide.pipeline.replicas.peer_follower.hydrate_cohort", refuse)
        with pytest.raises(Unavailable):
            follower.advance()
    follower.advance()
    check(follower, 5)
    push(leader, 5)
    follower.advance()
    check(follower, 6)
    crash(leader)
    follower.close()


def refuse(*_: object) -> None:
    raise Unavailable(path="a shard", why="no answer")


def forget_in_third_portion(pipeline: Pipeline, kept: Storage, patch: pytest.MonkeyPatch) -> None:
    """Damage the parts of the table before the third portion is computed, with nothing of them in memory."""
    machine, calls = pipeline._runner.machine, 0
    tables, compute = machine.tables, machine.tables.compute_deltas

    def damage_and_compute(*given: Any) -> TableDeltas:
        nonlocal calls
        calls += 1
        if calls == 3:
            damage(kept, table_parts(kept), "flipped")
            machine.store.cache.bytes_max = 0
            for part in (part for one in tables.list_arrangements() for part in one.parts()):
                machine.store.cache.drop(part.key, part.row_groups)
        return compute(*given)

    patch.setattr(tables, "compute_deltas", damage_and_compute)


@pytest.mark.parametrize("when", ["before opening", "after opening"])
def test_if_a_table_is_not_kept_an_older_checkpoint_is_used(when: str) -> None:
    """Fails if opening does not read the state parts: the older checkpoint would be dropped, or each process find the
    damage again."""
    kept = storage()
    made = engine("revenue", tables=(without_shard(ORDERS), NOTES))
    fill(kept, made=made)
    checkpoints = Checkpoints(kept.blob, kept.meta, runtime=SystemRuntime(), settings=SETTINGS)
    new, old = (set(checkpoints.read(entry).state_parts) for entry in checkpoints.entries())
    only_new = [file.key for file in new - old if "/orders." in file.key]
    if when == "after opening":
        pipeline = open_pipeline(kept, made)
        damage(kept, only_new, "flipped")
        with pytest.raises(BlobDamaged):
            push(pipeline, 0, 3)
        assert pipeline.status().state == "frozen"
        crash(pipeline)
    else:
        damage(kept, only_new, "flipped")
    again = open_pipeline(kept, made)
    assert again.status().state == "running"
    assert [problem.error_code for problem in again.status().problems] == ["checkpoint_damaged"]
    assert rows_of(again, "revenue") == [("a", 40)]
    push(again, 3, 4)
    assert rows_of(again, "revenue") == [("a", 50)]
    again.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", [table_parts, view_parts])
def test_the_scrub_finds_damage_that_no_look_up_reads(parts: Callable[[Storage], list[str]], way: str) -> None:
    kept = storage()
    fill(kept)
    damage(kept, parts(kept), way)
    pipeline = open_pipeline(kept, threads=True)
    while "checkpoint_damaged" not in [one.error_code for one in pipeline.status().problems]:
        pipeline.advance()
    check(pipeline, 4)
    push(pipeline, 0, 4)
    check(pipeline, 5)
    assert pipeline.status().state == "running"
    pipeline.close()
    assert open_pipeline(kept).status().problems == ()


def test_the_scrub_reads_each_part_once_per_interval_and_as_fast_as_allowed() -> None:
    """With a clock of its own."""
    kept = storage()
    fill(kept)
    read: list[str] = []
    hooked = HookedBlob(kept.blob, lambda operation, key: read.append(key) if operation == "get" else None)
    runtime = ManualRuntime()
    pipeline = open_pipeline(
        storage(hooked, kept.meta), runtime=runtime, settings=replace(SETTINGS, scrub_bytes_per_s=1)
    )
    scrub = Scrub(pipeline._runner)
    parts = {part.key: part for one in pipeline._runner.machine.arrangements() for part in one.parts()}
    assert len(parts) > 2
    for count in range(1, len(parts) + 1):
        read.clear()
        scrub.run(never_stopping)
        scrub.run(never_stopping)
        [key] = read
        runtime.advance_s(parts[key].bytes - 0.5)
        scrub.run(never_stopping)
        assert read == [key], count
        runtime.advance_s(1.0)
    read.clear()
    scrub.run(never_stopping)
    assert read == []
    runtime.advance_s(SETTINGS.scrub_interval_s)
    scrub.run(never_stopping)
    assert len(read) == 1
    crash(pipeline)


def test_storage_that_is_away_is_no_damage() -> None:
    kept = storage()
    fill(kept)
    is_away = False

    def refuse(_operation: str, key: str) -> None:
        if is_away and key.startswith(state_prefix()):
            raise Unavailable(path=key, why="no answer")

    pipeline = open_pipeline(storage(HookedBlob(kept.blob, refuse), kept.meta))
    is_away = True
    with pytest.raises(Unavailable):
        Scrub(pipeline._runner).run(never_stopping)
    assert not pipeline._runner.machine.damage
    is_away = False
    Scrub(pipeline._runner).run(never_stopping)
    push(pipeline, 4)
    check(pipeline, 5)
    assert pipeline.status().problems == ()
    pipeline.close()


def test_a_merge_that_finds_damage_lets_the_state_be_computed_again() -> None:
    kept = storage()
    fill(kept)
    damage(kept, view_parts(kept), "flipped")
    pipeline = open_pipeline(kept)
    for arrangement in pipeline._runner.machine.arrangements():
        arrangement._spine._settings = ArrangementSettings(merge_fan_in=2)
    with pytest.raises(BlobDamaged):
        StateMaintenance(pipeline._runner, pipeline._leader_tasks.checkpointer, threading.RLock())._merge()
    pipeline.advance()
    check(pipeline, 4)
    assert not pipeline._runner.machine.damage
    push(pipeline, 0, 4)
    check(pipeline, 5)
    pipeline.close()


def test_a_merge_of_state_that_was_replaced_meanwhile_finds_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection has deleted its parts. Fails if status shows a problem until the next merge."""
    kept = storage()
    fill(kept)
    pipeline = open_pipeline(kept)
    error = BlobMissing(path=kept.blob.path("state/orders.keyed3/gone"), why="it is not there")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(pipeline._runner.machine.tables, "maintain", refuse)
    StateMaintenance(pipeline._runner, pipeline._leader_tasks.checkpointer, threading.RLock())._merge()
    assert not pipeline._runner.machine.damage
    crash(pipeline)


def test_a_follower_computes_damaged_state_again_and_goes_on() -> None:
    kept = storage()
    fill(kept)
    leader = open_pipeline(kept, role=ProcessRole.REPLICA)
    follower = open_pipeline(kept, role=ProcessRole.REPLICA)
    damage(kept, [*table_parts(kept), *view_parts(kept)], "flipped")
    for number in (0, 4):
        push(leader, number)
        follower.advance()
    for pipeline in (leader, follower):
        check(pipeline, 5)
        assert pipeline.status().state == "running"
    crash(leader)
    follower.close()
