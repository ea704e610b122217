"""A repair that is interrupted at any change and repeated ends like an uninterrupted one; no process runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evertide.checkpoint.registration import REPAIRING
from evertide.checkpoint.repair import RepairReport, _Repair
from evertide.errors import Conflict, NotAllowedNow
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole, register_as
from evertide.pipeline.transaction.runner import Runner
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Record
from evertide.store.open import Storage
from evertide.store.paths import COMMITTED, JOURNAL, PIPELINE, beat_key, shard_key, writer_key
from evertide.store.writers import Writer, read_registrations
from tests.pipeline.kit import SETTINGS, crash, open_pipeline, rows_of, storage
from tests.pipeline.test_damage import (
    ROLLED_UP,
    WAYS,
    flip_record,
    make_storage,
    open_filled,
    run_fsck,
    run_repair,
    table_shard,
)
from tests.pipeline.test_damaged_checkpoint import order


class _Cut(BaseException):
    """Raised when the process is killed."""


class _CutAt:
    """A `Blob` or `Meta` whose process is killed at the n-th change of both."""

    def __init__(self, inner: Any, left: list[int]) -> None:
        self._inner = inner
        self._left = left

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Any] = getattr(self._inner, name)

        def counted(*args: Any, **named: Any) -> Any:
            if name in {"commit", "truncate", "put", "delete"}:
                self._left[0] -= 1
            if self._left[0] <= 0:
                raise _Cut
            return call(*args, **named)

        return counted


def _stop(*_: object) -> None:
    raise _Cut


@pytest.fixture(scope="module")
def template() -> tuple[Storage, Pipeline]:
    """Return a storage with a checkpoint at time 4, committed transactions 4 to 6, and transaction 7 that is only
    bound."""
    kept = make_storage()
    open_filled(kept, 3).close()
    pipeline = open_pipeline(kept, settings=ROLLED_UP)
    for number in range(3, 7):
        with pytest.MonkeyPatch.context() as patch:
            if number == 6:
                patch.setattr(Runner, "complete", _stop)
            with pipeline.transaction("till", number) as pushed:
                pushed.push("orders", [order(number)])
                pushed.push("notes", [{"text": f"note {number}"}])
            try:
                pipeline.take(pushed)
            except _Cut:
                assert number == 6
    crash(pipeline)
    return kept, pipeline


def make_damaged(template: tuple[Storage, Pipeline], key: str, at: int | None) -> Storage:
    """Flip one record of a key, or the newest of every key."""
    source, kept = template[0], storage()
    assert isinstance(kept.meta, MemoryMeta)
    assert isinstance(source.meta, MemoryMeta)
    for entry in source.blob.list(""):
        kept.blob.put(entry.key, source.blob.get(entry.key))
    kept.meta._log = {one: list(records) for one, records in source.meta._log.items()}
    for one in [key] if key else kept.meta._log:
        records = kept.meta._log[one]
        found = records[-1 if at is None else at]
        changed = WAYS["flipped"](found.data)
        assert changed is not None
        records[-1 if at is None else at] = Record(found.seqno, changed)
    return kept


def outcome(kept: Storage) -> tuple[object, ...]:
    again = open_pipeline(kept, settings=ROLLED_UP)
    try:
        last = again._context.journal.producers.read_last("till")
        return rows_of(again, "orders"), rows_of(again, "counts"), last and last.number
    finally:
        again.close()


def end_all_writers(kept: Storage) -> None:
    """End all writers, as if the interrupted process had been silent for long."""
    assert isinstance(kept.meta, MemoryMeta)
    for key in [key for key in kept.meta._log if key.startswith((writer_key(""), beat_key("")))]:
        del kept.meta._log[key]


def _lost(done: RepairReport) -> bool:
    return any("is lost" in sentence and "nothing is lost" not in sentence for sentence in done.done)


@pytest.mark.parametrize(
    ("kind", "at", "orders"),
    [("journal", -1, 6), ("journal", -2, 7), ("journal", 0, 7), ("committed", -1, 7), ("table", -1, 7), ("all", -1, 6)],
)
def test_x24_an_interrupted_repair_can_be_repeated(
    kind: str, at: int, orders: int, template: tuple[Storage, Pipeline]
) -> None:
    """Seen to fail: interrupted while it rewrote the journal, it left 3 of 7 rows and said `nothing is lost`."""
    keys = {"journal": JOURNAL, "committed": COMMITTED, "table": shard_key(table_shard(template[1])), "all": ""}
    whole = make_damaged(template, keys[kind], at)
    done = run_repair(whole)
    expected = outcome(whole)
    assert expected[1:] == ([(orders, orders)], orders - 1), done.done
    assert _lost(done) == (orders < 7), done.done
    changes = 0
    while True:
        changes += 1
        kept = make_damaged(template, keys[kind], at)
        left = [changes]
        try:
            run_repair(Storage(_CutAt(kept.blob, left), _CutAt(kept.meta, left), "memory"))
        except _Cut:
            end_all_writers(kept)
            is_in_doubt = bool(run_fsck(kept).problems)
            again = run_repair(kept)
            assert again.report.problems == ()
            assert outcome(kept) == expected, (changes, again.done)
            assert not is_in_doubt or _lost(again) == _lost(done), (changes, again.done)
            if not is_in_doubt:
                break  # later changes only put aside blobs that no record names
        else:
            break
    assert changes > 3


@pytest.mark.parametrize("role", ProcessRole)
def test_x24_no_process_starts_during_a_repair(role: ProcessRole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail: a pipeline that a supervisor restarted ran in the middle of a repair."""
    kept = make_storage()
    open_filled(kept).close()
    flip_record(kept, PIPELINE)
    steps: list[str] = []
    run_step = _Repair.run_step

    def starting(one: _Repair) -> list[str]:
        with pytest.raises(Conflict, match=r"repairs the storage .* wait until it ends"):
            register_as(role, kept.meta, runtime=SystemRuntime(), settings=SETTINGS)
        assert [each.label for each in read_registrations(kept.meta).values()] == [REPAIRING]
        steps.append(one.writer.id)
        return run_step(one)

    monkeypatch.setattr(_Repair, "run_step", starting)
    assert run_repair(kept).report.problems == ()
    assert steps
    open_pipeline(kept, settings=ROLLED_UP).close()


def test_a_repair_changes_nothing_while_a_process_is_alive() -> None:
    """Seen to fail: the repair removed a damaged registration before it checked whether a process was alive."""
    kept = make_storage()
    pipeline = open_filled(kept)
    flip_record(kept, writer_key(pipeline._writer.id))
    with pytest.raises(NotAllowedNow, match=f"writer {pipeline._writer.id} .its record is damaged. is registered"):
        run_repair(kept)
    pipeline.push("orders", [order(9)])
    pipeline.commit()
    assert len(rows_of(pipeline, "orders")) == 7
    crash(pipeline)


def test_a_repair_and_a_process_that_start_at_the_same_moment_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both register, then both check: the repair continues only if it is still alone."""
    kept = make_storage()
    open_filled(kept).close()
    register = Writer.register

    def both(*args: Any, **named: Any) -> Writer:
        monkeypatch.setattr(Writer, "register", register)
        register(kept.meta, runtime=SystemRuntime(), settings=SETTINGS, label="pipeline")
        return register(*args, **named)

    monkeypatch.setattr(Writer, "register", both)
    with pytest.raises(NotAllowedNow, match="is registered; stop it"):
        run_repair(kept)
    [other] = read_registrations(kept.meta).values()
    assert other.label == "pipeline"
    assert kept.meta.head(beat_key(other.writer)) is not None
