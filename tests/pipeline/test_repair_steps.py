"""Single steps of a repair, each of which another step would otherwise hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evertide.checkpoint.fsck import LOST
from evertide.checkpoint.meta_restore import read_pipeline_file
from evertide.checkpoint.rebuild import rebuild_shard
from evertide.checkpoint.records import Manifest
from evertide.checkpoint.registration import register_for_repair
from evertide.checkpoint.repair import _Repair, repair
from evertide.errors import Conflict, Fenced, StorageFull
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.shard.state import ShardState
from evertide.store.meta import Write
from evertide.store.open import Storage
from evertide.store.paths import GENERATION, JOURNAL, PIPELINE, beat_key
from evertide.store.writers import read_generation
from tests.kit.faulty import Fault, Faults, FaultyBlob
from tests.pipeline.kit import crash, engine, open_pipeline, rows_of
from tests.pipeline.test_damage import (
    ROLLED_UP,
    flip_record,
    make_storage,
    open_filled,
    parts_of,
    place,
    run_fsck,
    run_repair,
    table_shard,
    view_shard,
)
from tests.pipeline.test_damaged_checkpoint import order
from tests.pipeline.test_repair_cuts import end_all_writers


def before_each_step(monkeypatch: pytest.MonkeyPatch, call: Callable[[_Repair], None]) -> None:
    run_step = _Repair.run_step

    def started(one: _Repair) -> list[str]:
        call(one)
        return run_step(one)

    monkeypatch.setattr(_Repair, "run_step", started)


def test_a_repair_whose_registration_was_ended_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if its changes do not guard the registration."""
    kept = make_storage()
    open_filled(kept).close()
    flip_record(kept, PIPELINE)
    damaged = kept.meta.head(PIPELINE)
    before_each_step(monkeypatch, lambda _: end_all_writers(kept))
    with pytest.raises(Fenced):
        run_repair(kept)
    assert kept.meta.head(PIPELINE) == damaged


def test_a_change_of_another_process_during_a_repair_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = make_storage()
    open_filled(kept).close()
    flip_record(kept, PIPELINE)

    def late(*given: Any) -> bytes:
        head = kept.meta.head(PIPELINE)
        assert head is not None
        kept.meta.commit([Write(PIPELINE, head.seqno, b"another")])
        return read_pipeline_file(*given)

    monkeypatch.setattr("evertide.checkpoint.repair.read_pipeline_file", late)
    with pytest.raises(Conflict, match="another process changed this record at the same time"):
        run_repair(kept)


def test_a_repair_writes_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a repair that takes long would count as silent."""
    kept, runtime = make_storage(), SystemRuntime()
    open_filled(kept).close()

    def wait_for_beat(one: _Repair) -> None:
        first = kept.meta.head(beat_key(one.writer.id))
        while kept.meta.head(beat_key(one.writer.id)) == first:
            runtime.sleep_s(0.001)

    before_each_step(monkeypatch, wait_for_beat)
    where = place(kept)
    repair(replace(where, settings=replace(where.settings, heartbeat_interval_s=0.01)))


def test_an_orphan_is_copied_before_it_is_deleted() -> None:
    """There is no room for the copies."""
    kept = make_storage()
    open_filled(kept).close()
    orphans = {key: kept.blob.get(key) for key in run_fsck(kept).orphans}
    assert orphans

    def choose(_operation: str, key: str) -> Fault:
        return Fault.REFUSED if key.startswith(LOST) else Fault.DONE

    full = Faults(choose, lambda *_: Fault.DONE, StorageFull)
    with pytest.raises(StorageFull):
        repair(place(Storage(FaultyBlob(kept.blob, full), kept.meta, kept.root)))
    assert {key: kept.blob.get(key) for key in run_fsck(kept).orphans} == orphans
    assert set(run_repair(kept).moved) == orphans.keys()
    assert {key: kept.blob.get(f"{LOST}{key}") for key in orphans} == orphans


def test_a_journal_without_a_readable_record_is_reported() -> None:
    kept = make_storage()
    open_filled(kept).close()
    for record in kept.meta.scan(JOURNAL)[:-1]:
        kept.meta.truncate(JOURNAL, record.seqno + 1)
    flip_record(kept, JOURNAL)
    done = run_repair(kept)
    assert any("no record of the journal was readable" in sentence for sentence in done.done), done.done


def test_a_definition_is_not_restored_from_a_checkpoint_of_another_generation() -> None:
    """Its views would not be those of the generation in force."""
    kept = make_storage()
    open_filled(kept, 3).close()
    pipeline = open_pipeline(kept, engine("revenue", "counts", "share"), settings=ROLLED_UP)
    pipeline.push("orders", [{"id": 3, "customer": "a", "amount": 0}])  # the view `share` fails
    pipeline.commit()
    crash(pipeline)
    made = read_generation(kept.meta)
    assert made is not None
    assert all(pipeline._context.checkpoints.read(one).generation < made.number for one in checkpoints_of(pipeline))
    flip_record(kept, PIPELINE)
    done = run_repair(kept)
    assert not any("restored the definition" in sentence for sentence in done.done), done.done
    assert done.report.problems == ()
    with open_pipeline(kept, settings=ROLLED_UP) as again:
        assert rows_of(again, "counts") == [(4, 3)]


def checkpoints_of(pipeline: Pipeline) -> tuple[Any, ...]:
    return pipeline._context.checkpoints.entries()


@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_repair_goes_back_to_a_checkpoint_whose_tables_are_intact(kind: str) -> None:
    """A missing part of a view does not matter, since the view is computed again."""
    kept = make_storage()
    pipeline = open_filled(kept, 2)
    older = pipeline.checkpoint()
    pipeline.push("orders", [order(2)])
    pipeline.commit()
    newer = pipeline.checkpoint()
    crash(pipeline)
    shard = table_shard(pipeline) if kind == "table" else view_shard(pipeline)
    kept.blob.delete(parts_of(pipeline, shard)[-1])
    head = kept.meta.head(GENERATION)
    assert head is not None
    kept.meta.commit([Write(GENERATION, head.seqno, None)])
    expected = older if kind == "table" else newer
    done = run_repair(kept)
    assert any(f"restored Meta from checkpoint {expected.number}" in sentence for sentence in done.done), done.done


# `rebuild_shard`


def rebuilt(kept: Storage, pipeline: Pipeline, upper: int) -> Manifest | None:
    """Rebuild the shard of the orders from the checkpoints, newest first."""
    manifests = [pipeline._context.checkpoints.read(entry) for entry in checkpoints_of(pipeline)]
    with register_for_repair(place(kept)) as writer:
        return rebuild_shard(place(kept), table_shard(pipeline), manifests, upper, writer)


def state_of(kept: Storage, pipeline: Pipeline) -> ShardState:
    return place(kept).shard_log(table_shard(pipeline)).reread().state


def filled_and_crashed() -> tuple[Storage, Pipeline]:
    """A storage with a checkpoint at time 3, and transactions after it."""
    kept = make_storage()
    pipeline = open_pipeline(kept, settings=replace(ROLLED_UP, rollup_every_diffs=1000))
    for number in range(5):
        pipeline.push("orders", [order(number)])
        pipeline.commit()
        if number == 2:
            pipeline.checkpoint()
    return kept, pipeline


def test_a_shard_is_rebuilt_with_its_since_and_holds() -> None:
    """Without the hold of a backfill, whose process has ended."""
    kept, pipeline = filled_and_crashed()
    shard = pipeline._context.shards.open(table_shard(pipeline))
    shard.hold("sink-out", 2)
    shard.hold("backfill-0123", 3)
    shard.advance_since(2, pipeline._writer)
    before = shard.log.reread().state
    crash(pipeline)
    assert rebuilt(kept, pipeline, before.upper) is not None
    after = state_of(kept, pipeline)
    assert (after.since, after.upper) == (before.since, before.upper) == (2, 6)
    assert [part.key for part in after.parts] == [part.key for part in before.parts]
    assert shard.holds["sink-out"] == 2
    assert "backfill-0123" not in shard.holds


def test_a_shard_is_not_rebuilt_if_it_would_lack_transactions() -> None:
    kept, pipeline = filled_and_crashed()
    crash(pipeline)
    upper = state_of(kept, pipeline).upper
    assert rebuilt(kept, pipeline, upper + 1) is None
    assert rebuilt(kept, pipeline, upper) is not None


def test_a_finalized_shard_is_not_rebuilt() -> None:
    kept, pipeline = filled_and_crashed()
    shard = pipeline._context.shards.open(table_shard(pipeline))
    upper = shard.upper
    shard.finalize(pipeline._writer)
    crash(pipeline)
    assert rebuilt(kept, pipeline, upper) is None


def test_a_shard_is_not_rebuilt_without_its_parts() -> None:
    """Fails if the parts that the checkpoint names are not read before the shard is changed."""
    kept, pipeline = filled_and_crashed()
    crash(pipeline)
    kept.blob.delete(parts_of(pipeline, table_shard(pipeline))[0])
    assert rebuilt(kept, pipeline, state_of(kept, pipeline).upper) is None
