"""X8: a file of the newest checkpoint is damaged. The older one is used, status reports it, and a new one is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.records import manifest_key
from evertide.errors import BlobMissing
from evertide.journal.journal import Journal
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status, read_status
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from evertide.store.open import Storage
from evertide.store.paths import checkpoint_key
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, crash, engine, open_pipeline, rows_of, storage


def order(number: int) -> dict[str, object]:
    return {"id": number, "customer": "a", "amount": 10}


def with_two_checkpoints(kept: Storage) -> Pipeline:
    pipeline = open_pipeline(kept, settings=replace(SETTINGS, inline_bytes_max=1))
    for number in range(3):
        pipeline.push("orders", [order(number)])
        pipeline.commit()
        pipeline.checkpoint()
    return pipeline


def numbers(pipeline: Pipeline) -> list[int]:
    return [entry.number for entry in pipeline._context.checkpoints.entries()]


def replace_blob(kept: Storage, key: str, change: Callable[[bytes], bytes | None]) -> None:
    content = kept.blob.get(key)
    kept.blob.delete(key)
    if (changed := change(content)) is not None:
        kept.blob.put(key, changed)


WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "flipped": lambda content: bytes([*content[:-2], content[-2] ^ 1, content[-1]]),
    "newer": lambda content: content.replace(b'"version": 1', b'"version": 3') if content[:1] == b"{" else b"\x03",
    "short": lambda content: content[: len(content) // 2],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", ["manifest.json", "state.bin", "pipeline.bin"])
def test_x8_an_older_checkpoint_is_used_and_a_new_one_is_due_at_once(file: str, way: str) -> None:
    """Seen to fail: a damaged manifest kept the pipeline from opening; with any other damaged file, the next checkpoint
    dropped the intact one."""
    kept = storage()
    first = with_two_checkpoints(kept)
    new, old = numbers(first)
    crash(first)
    replace_blob(kept, checkpoint_key(new, file), WAYS[way])
    second = open_pipeline(kept)
    assert rows_of(second, "revenue") == [("a", 30)]
    assert numbers(second) == [new + 1, old], "the intact checkpoint must stay, and the damaged one must be replaced"
    [problem] = second.status().problems
    assert (problem.state, problem.error_code) == ("warning", "checkpoint_damaged")
    assert f"checkpoint {new} at time" in problem.why
    assert "fsck" not in problem.why, "the remedy of the error must not contradict that of the problem"
    assert second.status().state == "running"
    assert second._leader_tasks.checkpointer.collect_garbage().refused is None
    second.push("orders", [order(9)])
    second.commit()
    second.close()
    assert numbers(second) == [new + 2, new + 1]


def test_x8_a_checkpoint_that_is_known_to_be_damaged_is_not_the_newest() -> None:
    """Its manifest is intact. Fails if only the manifests are compared: no new checkpoint would be due."""
    pipeline = with_two_checkpoints(storage())
    checkpoints = pipeline._context.checkpoints
    newest, older = checkpoints.entries()
    checkpoints.damage.add(newest, BlobMissing(path="state/part", why="it is not there"))
    found = checkpoints.newest()
    assert found is not None
    assert found[0] == older
    crash(pipeline)


def test_x8_without_an_intact_checkpoint_state_is_computed_from_the_tables() -> None:
    kept = storage()
    first = with_two_checkpoints(kept)
    new, old = numbers(first)
    crash(first)
    for number in (new, old):
        kept.blob.delete(manifest_key(number))
    second = open_pipeline(kept)
    assert rows_of(second, "revenue") == [("a", 30)]
    assert numbers(second) == [new + 1]
    assert [problem.error_code for problem in second.status().problems] == ["checkpoint_damaged"] * 2
    second.close()
    assert rows_of(open_pipeline(kept), "revenue") == [("a", 30)]


def test_x8_damage_that_garbage_collection_finds_is_reported_and_repaired() -> None:
    """C3 in a running pipeline: nothing is deleted, status reports the damage, the next checkpoint replaces the damaged
    one."""
    kept = storage()
    pipeline = with_two_checkpoints(kept)
    new, old = numbers(pipeline)
    replace_blob(kept, manifest_key(old), lambda _: b"{not valid json")
    before = {entry.key for entry in kept.blob.list("")}
    assert pipeline._leader_tasks.checkpointer.collect_garbage().refused is not None
    assert {entry.key for entry in kept.blob.list("")} == before
    told = pipeline.status().problems
    assert [problem.error_code for problem in told] == ["checkpoint_damaged", "record_damaged"]
    assert "garbage collection" in told[1].why
    assert all(problem.state == "warning" and problem.since_s > 0 for problem in told)
    pipeline._leader_tasks._reporter.write_if_changed()
    assert [problem.why for problem in seen_by_others(kept).problems] == [problem.why for problem in told]
    assert pipeline._leader_tasks.checkpointer.is_due()
    pipeline.run(until_idle=True)
    assert numbers(pipeline) == [new + 1, new], "a new checkpoint is due at once, not after the interval"
    assert pipeline._leader_tasks.checkpointer.collect_garbage().refused is None
    assert [problem.error_code for problem in pipeline.status().problems] == ["checkpoint_damaged"]
    assert "a newer one has replaced it" in pipeline.status().problems[0].why
    pipeline._leader_tasks._reporter.write_if_changed()
    assert [problem.error_code for problem in seen_by_others(kept).problems] == ["checkpoint_damaged"]
    crash(pipeline)
    assert seen_by_others(kept).problems == (), "the report of an ended process is still shown"


def seen_by_others(kept: Storage) -> Status:
    """Return the status as `evertide status --storage` reads it."""
    runtime = SystemRuntime()
    shards = Shards(kept.blob, kept.meta, runtime=runtime, settings=SETTINGS)
    journal = Journal(kept.blob, kept.meta, runtime=runtime, settings=SETTINGS)
    return read_status(kept, shards, journal, Checkpoints(kept.blob, kept.meta, runtime=runtime, settings=SETTINGS))


def test_x8_the_older_checkpoint_is_usable_if_a_table_and_a_column_were_added_after_it() -> None:
    """The shards of both begin after the checkpoint that is used: a replay must not read earlier times from them."""
    kept = storage()
    first = open_pipeline(kept, engine("revenue", tables=(ORDERS,)))
    first.push("orders", [order(1)])
    first.commit()
    first.checkpoint()
    first.push("orders", [order(2)])
    first.commit()
    crash(first)
    wider = replace(ORDERS, schema=ORDERS.schema.append(pa.field("note", pa.string())))
    second = open_pipeline(kept, engine("revenue", "counts", tables=(wider, NOTES)))
    second.push("orders", [{**order(3), "note": "n"}])
    second.push("notes", [{"text": "x"}])
    second.commit()
    second.checkpoint()
    [newest] = [number for number, _ in second.status().checkpoints[:1]]
    second.push("notes", [{"text": "y"}])
    second.commit()
    crash(second)
    replace_blob(kept, manifest_key(newest), WAYS["flipped"])
    third = open_pipeline(kept, engine("revenue", "counts", tables=(wider, NOTES)))
    assert rows_of(third, "revenue") == [("a", 30)]
    assert rows_of(third, "counts") == [(3, 2)]
    assert len(rows_of(third, "orders")) == 3
