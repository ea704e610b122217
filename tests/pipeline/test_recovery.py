"""After a crash, or with a damaged checkpoint, the pipeline recovers to where it was, or reports why it cannot."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from evertide.errors import (
    BlobMissing,
    Conflict,
    Fenced,
    InvalidInput,
    RecordDamaged,
    StorageForbidden,
    StorageFull,
    Unavailable,
    UnsupportedFormat,
)
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.recovery.opening import _select_state
from evertide.settings import Settings
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.meta import Guard, Stale, Write
from evertide.store.open import Storage
from evertide.store.paths import PIPELINE, state_prefix
from tests.kit.checkpoint_files import checkpoint_files
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    SETTINGS,
    VIEWS,
    Row,
    crash,
    engine,
    open_pipeline,
    rows_of,
    storage,
    without_shard,
)
from tests.pipeline.test_threads import wait_until


def order(number: int, amount: int) -> Row:
    return {"id": number, "customer": f"c{number % 3}", "amount": amount}


def fill(p: Pipeline, first: int, count: int) -> None:
    for number in range(first, first + count):
        p.push("orders", [order(number % 5, number)])
        p.commit()


def check(p: Pipeline) -> None:
    """Check that all views equal the result of their functions over the tables."""
    tables = {name: p.view(name).to_pylist() for name in ("orders", "notes")}
    made = p.engine
    assert isinstance(made, SmallEngine)
    for view in made.small_views:
        expected = sorted((tuple(row.values()) for row in view.function(tables)), key=repr)
        assert rows_of(p, view.name) == expected


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_j6_transaction_numbers_continue_after_a_restart(with_checkpoint: bool) -> None:
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 4)
        if not with_checkpoint:
            crash(p)
        else:
            p.checkpoint()
    with open_pipeline(kept) as p:
        assert p.time == 4
        fill(p, 5, 2)
        assert p.time == 6
        check(p)


def test_views_are_right_after_a_crash_after_every_transaction_and_checkpoint() -> None:
    kept = storage()
    for number in range(8):
        p = open_pipeline(kept)
        check(p)
        assert p.time == number * 2
        fill(p, number * 2, 1)
        if number % 3 == 1:
            p.checkpoint()
        fill(p, number * 2 + 1, 1)
        crash(p)


class FullMeta(MemoryMeta):
    """A Meta that has no room while `is_full` is set, and otherwise passes calls on."""

    def __init__(self, behind: MemoryMeta) -> None:
        super().__init__()
        self._log = behind._log
        self.is_full = False

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        if self.is_full:
            raise StorageFull(path="meta", why="no room")
        return super().commit(writes, guards)


def bound_only(kept: Storage, rows: list[Row], settings: Settings = SETTINGS) -> None:
    """Bind a transaction in a process that dies before the commit."""
    p = open_pipeline(kept, settings=settings)
    p.push("orders", rows)
    p._pushes.offer_pushed(p._pushed)
    inputs, _ = p._input_reader.read(p.definition)
    p._runner.bind(inputs)
    crash(p)


WITH_BLOBS = replace(SETTINGS, inline_bytes_max=1)


@pytest.mark.parametrize("settings", [SETTINGS, WITH_BLOBS])
def test_a_bound_transaction_is_completed_after_a_crash(settings: Settings) -> None:
    """Its rows are in the record of the journal, or in a blob."""
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 2)
    bound_only(kept, [order(7, 70)], settings)
    assert len(list(kept.blob.list("journal"))) == (settings is WITH_BLOBS)
    with open_pipeline(kept) as p:
        assert p.time == 3
        assert (7, "c1", 70) in rows_of(p, "orders")
        check(p)


def test_j3_staged_input_that_was_not_bound_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without `drop_unbound` the fragment stays for ever."""
    kept = storage()
    p = open_pipeline(kept, settings=WITH_BLOBS)
    with p.transaction() as pushed:
        pushed.push("orders", [order(1, 1)])
    crash(p)
    with open_pipeline(kept) as p, caplog.at_level(logging.WARNING):
        p._leader_tasks.checkpointer.collect_garbage()
        assert not list(kept.blob.list("journal"))
        assert p.time == 0
        assert "push" in caplog.text


def test_j9_a_missing_bound_fragment_is_an_error_that_names_it() -> None:
    kept = storage()
    bound_only(kept, [order(1, 1)], WITH_BLOBS)
    [entry] = list(kept.blob.list("journal"))
    kept.blob.delete(entry.key)
    with pytest.raises(BlobMissing, match=entry.key):
        open_pipeline(kept)


def test_u4_an_append_whose_answer_was_lost_is_not_repeated() -> None:
    """The commit succeeds, its answer is lost, and the process dies: the next process finds the transaction
    committed."""
    blob, meta = MemoryBlob(), MemoryMeta()
    with open_pipeline(Storage(blob, meta, "m")) as p:
        fill(p, 1, 1)
    p = open_pipeline(Storage(blob, meta, "m"))
    p.push("notes", [{"text": "once"}])
    real = p._runner.commit
    p._runner.commit = lambda: None  # type: ignore[method-assign]
    p._pushes.offer_pushed(p._pushed)
    inputs, batches = p._input_reader.read(p.definition)
    p._runner.complete(p._runner.bind(inputs), batches)
    real()
    crash(p)
    with open_pipeline(Storage(blob, meta, "m")) as p:
        assert p.time == 2
        assert rows_of(p, "notes") == [("once",)]


def test_a_commit_whose_answer_was_lost_is_read_back() -> None:
    blob, meta = MemoryBlob(), MemoryMeta()
    with open_pipeline(Storage(blob, meta, "m")) as p:
        fill(p, 1, 1)
        for number in range(2, 12):
            faults = Faults.scripted(writes=[Fault.DONE] * (number % 4) + [Fault.DONE_LOST])
            p._runner.meta = p._context.journal._meta = FaultyMeta(meta, faults)
            fill(p, number, 1)
        check(p)
        assert p.time == 11


def test_c5_missing_state_is_damage_and_computing_it_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If missing state counted as a new view, it would be computed without a warning."""
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 10)
        first = p.checkpoint()
        fill(p, 11, 10)
        second = p.checkpoint()
        assert second.number > first.number
        named = {file.key for file in p._context.checkpoints.read(second).files}
        named -= {file.key for file in p._context.checkpoints.read(first).files}
        gone = next(key for key in named if key.startswith(state_prefix("").rstrip("/")))
        crash(p)
    kept.blob.delete(gone)
    with caplog.at_level(logging.ERROR), open_pipeline(kept) as p:
        check(p)
        assert p.time == 20
        fill(p, 21, 10)
        check(p)
    assert gone in caplog.text


def test_without_a_checkpoint_state_is_rebuilt_from_the_tables_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 10)
    for entry in [*kept.blob.list("state"), *kept.blob.list("checkpoints")]:
        if not entry.key.endswith("manifest.json"):
            kept.blob.delete(entry.key)
    with caplog.at_level(logging.WARNING), open_pipeline(kept) as p:
        check(p)
        fill(p, 11, 3)
        check(p)
    assert "no checkpoint is intact" in caplog.text


def test_x7_a_view_whose_rebuilt_state_differs_from_its_shard_gets_a_new_shard() -> None:
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 4)
    for entry in [*kept.blob.list("state"), *kept.blob.list("checkpoints")]:
        if not entry.key.endswith("manifest.json"):
            kept.blob.delete(entry.key)
    other = replace(VIEWS["revenue"], function=lambda _: [{"customer": "nobody", "amount": 1}])
    with open_pipeline(kept, SmallEngine([ORDERS, NOTES], [other, VIEWS["counts"]])) as p:
        assert rows_of(p, "revenue") == [("nobody", 1)]
        assert len([*kept.blob.list("evidence")]) == 1
    with open_pipeline(kept) as p:
        fill(p, 5, 1)


def test_j11_a_replay_with_other_digests_is_reported_and_the_view_recomputed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without the comparison of digests the view would continue from a state that its shard does not have."""
    kept = storage()
    p = open_pipeline(kept)
    fill(p, 1, 3)
    crash(p)
    other = replace(VIEWS["revenue"], function=lambda tables: [{"customer": "x", "amount": len(tables["orders"])}])
    wrong = SmallEngine([ORDERS, NOTES], [other, VIEWS["counts"]])
    with open_pipeline(kept, wrong) as p:
        assert p.time == 3
        check(p)
    assert "view 'revenue' has" in caplog.text


def test_a_missing_definition_is_damage_that_names_fsck() -> None:
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 1)
    head = kept.meta.head(PIPELINE)
    assert head is not None
    kept.meta.commit([Write(PIPELINE, head.seqno, None)])
    with pytest.raises(RecordDamaged, match="fsck"):
        open_pipeline(kept)


def test_tables_that_are_not_kept_are_replayed_from_their_input() -> None:
    """Pushed rows of a table without a shard are in the journal, which is kept as long as a checkpoint may need it."""
    kept = storage()
    made = engine("revenue", tables=(without_shard(ORDERS), NOTES))
    p = open_pipeline(kept, made)
    for number in range(1, 6):
        p.push("orders", [order(number % 3, number)])
        p.commit()
        if number == 2:
            p.checkpoint()
    expected = rows_of(p, "revenue")
    with pytest.raises(InvalidInput, match="not kept"):
        p.view("orders").to_arrow()
    crash(p)
    with open_pipeline(kept, made) as p:
        assert rows_of(p, "revenue") == expected
        p.push("orders", [order(1, 100)], deletes=[0])
        p.commit()
        assert rows_of(p, "revenue") == [("c1", 100), ("c2", 5)]


def test_c10_a_full_disk_delays_the_transaction_and_loses_nothing() -> None:
    """The computed result is committed once there is room; if it were dropped, the state would apply the transaction
    twice."""
    blob, meta = MemoryBlob(), MemoryMeta()
    p = open_pipeline(Storage(blob, meta, "m"))
    fill(p, 1, 2)

    full = FullMeta(meta)
    for member in p._runner.members.open_all().values():
        member.log.meta = full
    full.is_full = True
    p.push("orders", [order(9, 9)])
    with pytest.raises(StorageFull):
        p.commit()
    assert p.time == 2
    full.is_full = False
    assert p.advance() is None
    assert p.time == 3
    check(p)
    p.close()


@pytest.mark.parametrize("refusal", [StorageFull, StorageForbidden])
def test_c10_a_step_whose_state_storage_refuses_is_retried(refusal: type[Unavailable]) -> None:
    """As with expired credentials. Seen to fail: the pipeline ended, although it had applied nothing of the
    transaction."""
    blob, meta, is_refused = MemoryBlob(), MemoryMeta(), threading.Event()
    with open_pipeline(Storage(blob, meta, "m")) as p:
        for number in range(40):
            p.push("orders", [order(number, number)])
            p.commit()
        p.checkpoint()

    def chosen(_: str, key: str) -> Fault:
        return Fault.REFUSED if is_refused.is_set() and "/small." in key else Fault.DONE

    faulty = FaultyBlob(blob, Faults(chosen, chosen, refusal))
    with open_pipeline(Storage(faulty, meta, "m")) as p, ThreadPoolExecutor() as pool:
        is_refused.set()
        p.push("orders", [order(9, 90)], deletes=[1])
        with pytest.raises(refusal):
            p.commit()
        loop = pool.submit(p.run)
        try:
            wait_until(lambda: [one.error_code for one in p.status().problems] == [refusal.error_code])
            assert p.status().state == "stalled"
            assert p.time == 40
            is_refused.clear()
            wait_until(lambda: p.time == 41)
        finally:
            p.stop()
        loop.result()
        check(p)
        assert p.status().state == "running"
        assert not p.status().problems


@pytest.mark.parametrize("gone", ["state", "checkpoints"])
def test_c11_the_journal_and_times_of_the_older_checkpoint_are_kept(gone: str) -> None:
    """If the journal were cut at the newer checkpoint, or times compacted up to it, the older one would be unusable."""
    kept = storage()
    with open_pipeline(kept, engine("revenue", tables=(without_shard(ORDERS), NOTES))) as p:
        for number in range(1, 30):
            p.push("orders", [order(number % 5, number)])
            p.commit()
            if number % 6 == 0:
                p.checkpoint()
                for shard in p._runner.members.open_all().values():
                    shard.compact(p._writer)
                p._leader_tasks.checkpointer.collect_garbage()
        expected = rows_of(p, "revenue")
        newest, older = p._context.checkpoints.entries()
        files = {file.key for file in checkpoint_files(p, newest)} - {file.key for file in checkpoint_files(p, older)}
        crash(p)
    for key in files:
        if key.startswith(gone) and not key.endswith("manifest.json"):
            kept.blob.delete(key)
    with open_pipeline(kept, engine("revenue", tables=(without_shard(ORDERS), NOTES))) as p:
        assert p.time == 29
        assert rows_of(p, "revenue") == expected


def test_j8_state_of_another_version_is_refused_by_its_number() -> None:
    """It is refused before anything is decoded: half of a state would be worse than none."""
    kept = storage()
    with open_pipeline(kept) as p:
        fill(p, 1, 2)
        state = p._leader_tasks.checkpointer._draft(p.definition).state
        restored = p._context.checkpoints.restore(p._writer)
    assert restored is not None
    assert _select_state(restored, p.definition, {}) is not None
    newer = replace(restored, state=bytes([state[0] + 1]) + state[1:])
    with pytest.raises(UnsupportedFormat, match="has format version 2"):
        _select_state(newer, p.definition, {})


def test_a_paused_leader_that_makes_a_checkpoint_learns_that_it_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that was paused in the middle of a checkpoint finds shards that its successor compacted. Fails if it
    reports that instead of the fence; while it leads, it reports that."""
    first = open_pipeline(storage())
    fill(first, 1, 1)

    def refused(*_: object) -> None:
        raise Conflict(where="shard", why="its times were compacted with later ones")

    monkeypatch.setattr(first._runner.checkpoints, "publish", refused)
    with pytest.raises(Conflict, match="compacted"):
        first.checkpoint()
    first._writer.unregister()
    with pytest.raises(Fenced):
        first.checkpoint()
    crash(first)
