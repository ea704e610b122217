"""A repair that is cut short at any change, and repeated, ends as one that was not; and a repair works alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evertide.checkpoint.exclusive import REPAIRING
from evertide.checkpoint.repair import RepairReport, _Repair
from evertide.errors import Conflict
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.replicas.ownership import Role, register_as
from evertide.pipeline.transaction.runner import Runner
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Record
from evertide.store.open import Storage
from evertide.store.paths import COMMITTED, JOURNAL, PIPELINE, beat_key, shard_key, writer_key
from evertide.store.writers import Writer, read_registrations
from tests.pipeline.kit import SETTINGS, crash, open_pipeline, rows_of, storage
from tests.pipeline.test_damage import ROLLED_UP, WAYS, checked, filled, flip_record, made_storage, mended, table_shard
from tests.pipeline.test_damaged_checkpoint import order


class _Cut(BaseException):
    """The process is gone."""


class _CutAt:
    """A `Blob` or `Meta` whose process is gone with the n-th change of both."""

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
    """A checkpoint at time 4, transactions 4 to 6 that are committed, and transaction 7, which is only bound."""
    kept = made_storage()
    filled(kept, 3).close()
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


def damaged(template: tuple[Storage, Pipeline], key: str, at: int | None) -> Storage:
    """One record of a key flipped, or the newest of every key."""
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
        last = again._context.journal.producers.last("till")
        return rows_of(again, "orders"), rows_of(again, "counts"), last and last.number
    finally:
        again.close()


def end_all_writers(kept: Storage) -> None:
    """As if the process that was cut had been silent for long."""
    assert isinstance(kept.meta, MemoryMeta)
    for key in [key for key in kept.meta._log if key.startswith((writer_key(""), beat_key("")))]:
        del kept.meta._log[key]


def _lost(done: RepairReport) -> bool:
    return any("is lost" in sentence and "nothing is lost" not in sentence for sentence in done.done)


@pytest.mark.parametrize(
    ("kind", "at", "orders"),
    [("journal", -1, 6), ("journal", -2, 7), ("journal", 0, 7), ("committed", -1, 7), ("table", -1, 7), ("all", -1, 6)],
)
def test_x24_a_repair_that_is_cut_short_is_repeated(
    kind: str, at: int, orders: int, template: tuple[Storage, Pipeline]
) -> None:
    """Seen to fail: cut in the rewriting of the journal, 3 of 7 rows were left, and it said `nothing is lost`."""
    keys = {"journal": JOURNAL, "committed": COMMITTED, "table": shard_key(table_shard(template[1])), "all": ""}
    whole = damaged(template, keys[kind], at)
    done = mended(whole)
    expected = outcome(whole)
    assert expected[1:] == ([(orders, orders)], orders - 1), done.done
    assert _lost(done) == (orders < 7), done.done
    changes = 0
    while True:
        changes += 1
        kept = damaged(template, keys[kind], at)
        left = [changes]
        try:
            mended(Storage(_CutAt(kept.blob, left), _CutAt(kept.meta, left), "memory"))
        except _Cut:
            end_all_writers(kept)
            is_in_doubt = bool(checked(kept).problems)
            again = mended(kept)
            assert again.report.problems == ()
            assert outcome(kept) == expected, (changes, again.done)
            assert not is_in_doubt or _lost(again) == _lost(done), (changes, again.done)
            if not is_in_doubt:
                break  # what follows only puts aside what nobody names
        else:
            break
    assert changes > 3


@pytest.mark.parametrize("role", Role)
def test_x24_no_process_starts_while_a_repair_works(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail: a pipeline that a supervisor started again ran in the middle of a repair."""
    kept = made_storage()
    filled(kept).close()
    flip_record(kept, PIPELINE)
    rounds: list[str] = []
    round_ = _Repair.round

    def starting(one: _Repair) -> list[str]:
        with pytest.raises(Conflict, match=r"repairs the storage .* wait until it ends"):
            register_as(role, kept.meta, runtime=SystemRuntime(), settings=SETTINGS)
        assert [each.label for each in read_registrations(kept.meta).values()] == [REPAIRING]
        rounds.append(one.writer.id)
        return round_(one)

    monkeypatch.setattr(_Repair, "round", starting)
    assert mended(kept).report.problems == ()
    assert rounds
    open_pipeline(kept, settings=ROLLED_UP).close()


def test_a_repair_touches_nothing_of_a_process_that_lives() -> None:
    """Seen to fail: it removed a damaged registration first, and looked afterwards whether somebody was at work."""
    kept = made_storage()
    pipeline = filled(kept)
    flip_record(kept, writer_key(pipeline._writer.id))
    with pytest.raises(Conflict, match=f"writer {pipeline._writer.id} .its record is damaged. is registered"):
        mended(kept)
    pipeline.push("orders", [order(9)])
    pipeline.commit()
    assert len(rows_of(pipeline, "orders")) == 7
    crash(pipeline)


def test_a_repair_and_a_process_that_begin_at_the_same_moment_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both register, both look: the repair goes on only if it is alone then, too."""
    kept = made_storage()
    filled(kept).close()
    register = Writer.register

    def both(*args: Any, **named: Any) -> Writer:
        monkeypatch.setattr(Writer, "register", register)
        register(kept.meta, runtime=SystemRuntime(), settings=SETTINGS, label="pipeline")
        return register(*args, **named)

    monkeypatch.setattr(Writer, "register", both)
    with pytest.raises(Conflict, match="is registered: stop it"):
        mended(kept)
    [other] = read_registrations(kept.meta).values()
    assert other.label == "pipeline"
    assert kept.meta.head(beat_key(other.writer)) is not None
