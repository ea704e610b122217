"""X23: storage or Spark fails in the middle of a step, of a replay or of a promotion. The work is repeated, and applied
once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import (
    BlobMissing,
    NotAllowedNow,
    OutcomeUnknown,
    SparkAway,
    SystemRefused,
    Unavailable,
    ViewFailed,
)
from evertide.flow.state.arrangement import Arrangement
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.replicas.leadership import promote
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from evertide.store.open import Storage
from evertide.store.paths import staged_prefix
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.small_engine import SmallCohort, SmallEngine
from tests.pipeline.kit import NOTES, ORDERS, Row, crash, engine, open_pipeline, rows_of, storage
from tests.pipeline.replica_kit import QUICK, Shared, caught_up, replica, shared
from tests.pipeline.test_backfill import check

EXTRA = DeclaredTable("extra", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]), key=("id",))
AT_ONCE = replace(QUICK, retry_limit_s=1e-9, retry_wait_max_s=1e-6, inline_bytes_max=1)
"""Every fault reaches the caller, as after `retry_limit_s`."""


def order(number: int, amount: int = 10) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


@contextmanager
def stepping(before: Callable[[SmallCohort, Mapping[str, pa.Table]], None]) -> Iterator[None]:
    """Call `before` before each step of a cohort; it may raise."""
    step = SmallCohort.step

    def stepped(self: SmallCohort, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        before(self, deltas)
        return step(self, deltas)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SmallCohort, "step", stepped)
        yield


@dataclass
class Outage:
    """One call fails: the n-th from now on that reads, or that writes."""

    fault: Fault = Fault.DONE
    left: int = -1
    is_read: bool = False

    def seen(self, kept: Storage) -> Storage:
        some = Faults(lambda *_: self._next(is_read=False), lambda *_: self._next(is_read=True))
        return Shared(FaultyBlob(kept.blob, some), FaultyMeta(kept.meta, some), "memory")

    def _next(self, *, is_read: bool) -> Fault:
        if is_read is not self.is_read:
            return Fault.DONE
        self.left -= 1
        return self.fault if self.left == 0 else Fault.DONE


def until(p: Pipeline, holds: Callable[[], bool]) -> int:
    """Advance as the pipeline's loop does; return the number of failed attempts."""
    failed = 0
    for _ in range(100):
        if holds():
            return failed
        try:
            p.advance()
        except (Unavailable, OutcomeUnknown):
            failed += 1
    pytest.fail(f"it does not get on: {p.status()}")


def test_x23_a_step_is_repeated_if_spark_fails_after_a_view_failed_in_it() -> None:
    """Seen to fail: the view had left its cohort but not the generation, and the pipeline ended with `it lacks the
    views`."""
    is_away = [False]

    def before(cohort: SmallCohort, _: Mapping[str, pa.Table]) -> None:
        if is_away[0] and "share" not in cohort.views:
            is_away[0] = False
            raise SparkAway(path="local", why="executors were lost")

    with stepping(before), open_pipeline(storage(), engine("revenue", "share")) as p:
        p.push("orders", [order(1)])
        p.commit()
        is_away[0] = True
        p.push("orders", [order(2, 0)])
        with pytest.raises(SparkAway):
            p.commit()
        p.advance()
        assert rows_of(p, "revenue") == [("ann", 10)]
        assert p.definition.list_away(ComponentState.FAILED) == ["share"]
        p.push("orders", [order(2, 5)])
        p.commit()
        p.advance()
        check(p, "revenue", "share")


def test_x23_a_cohort_that_has_applied_a_step_does_not_apply_it_again() -> None:
    """The next cohort loses Spark, and the step is repeated."""
    kept, is_away = shared(), [False]
    with open_pipeline(kept, engine("revenue")) as p:
        p.push("orders", [order(1)])
        p.commit()

    def before(cohort: SmallCohort, _: Mapping[str, pa.Table]) -> None:
        if is_away[0] and "counts" in cohort.views:
            is_away[0] = False
            raise SparkAway(path="local", why="executors were lost")

    with stepping(before), open_pipeline(kept, engine("revenue", "counts")) as p:
        p.wait_until_hydrated()
        assert [set(cohort.views) for cohort in p._runner.machine.cohorts] == [{"revenue"}, {"counts"}]
        is_away[0] = True
        p.push("orders", [order(2)])
        with pytest.raises(SparkAway):
            p.commit()
        p.advance()
        check(p, "revenue", "counts")


@pytest.mark.parametrize("portion_rows_max", [100_000, 1])
def test_x23_a_follower_continues_if_storage_does_not_answer_in_a_replay(portion_rows_max: int) -> None:
    """At each call in turn. Seen to fail: the follower ended, as every error in a replay counted as
    half-applied state."""
    settings = replace(AT_ONCE, portion_rows_max=portion_rows_max)
    kept, outage = shared(), Outage(Fault.REFUSED)
    first = replica(kept, settings=settings)
    second = replica(outage.seen(kept), settings=settings)
    for is_read in (True, False):
        calls, at = 0, 1
        while at <= calls + 1:
            with first.transaction() as pushed:
                pushed.push("orders", [order(at)])
                pushed.push("notes", [{"text": "x"}])
                pushed.push("orders", deletes=[at - 3])
            first.take(pushed)
            outage.is_read, outage.left = is_read, at
            until(second, lambda: second.time == first.time)
            calls, outage.left = max(calls, at - outage.left), -1
            at += 1
        assert calls > 5 or not is_read
    check(second, "revenue", "counts")
    assert rows_of(second, "orders") == rows_of(first, "orders")
    for p in (first, second):
        p.close(checkpoint=False)


def test_x23_a_follower_continues_if_spark_fails_in_a_replay_after_a_view_failed() -> None:
    """A view that failed in one attempt stays failed in the next."""
    kept = shared()
    first, second = replica(kept, engine("revenue", "share")), replica(kept, engine("revenue", "share"))
    first.push("orders", [order(1)])
    first.commit()
    caught_up(second)
    state = {"fails": True, "away": True}

    def before(cohort: SmallCohort, _: Mapping[str, pa.Table]) -> None:
        if cohort not in second._runner.machine.cohorts:
            return
        if "share" in cohort.views and state.pop("fails", False):
            raise ViewFailed(views=("share",), time=-1, why="a test has it so")
        if "share" not in cohort.views and state.pop("away", False):
            raise SparkAway(path="local", why="executors were lost")

    with stepping(before):
        first.push("orders", [order(2)])
        first.commit()
        with pytest.raises(SparkAway):
            second.advance()
        until(second, lambda: second.time == first.time)
    assert not state
    first.push("orders", [order(3)])
    first.commit()
    caught_up(second)
    for p in (first, second):
        check(p, "revenue", "share")
        p.close(checkpoint=False)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.DONE_LOST])
def test_x23_a_promotion_is_repeated_if_storage_does_not_answer(fault: Fault) -> None:
    """At each write in turn. Seen to fail: the new table had commits and no definition, and no process could open the
    pipeline."""
    at = 0
    while True:
        at += 1
        kept, outage = shared(), Outage(fault)
        first = replica(kept, settings=AT_ONCE)
        first.push("orders", [order(1)])
        first.commit()
        other = engine("revenue", tables=(ORDERS, NOTES, EXTRA)) if at % 2 else engine(tables=(ORDERS, NOTES, EXTRA))
        second = replica(outage.seen(kept), other, role=ProcessRole.READ_ONLY, settings=AT_ONCE)
        second.advance()
        promote(kept.meta, second._writer.id, runtime=second._runtime, settings=AT_ONCE)
        outage.left = at
        until(second, lambda: second.leads)  # noqa: B023 - called at once
        is_over = outage.left > 0
        outage.left = -1
        second.push("extra", [{"id": 7, "v": 7}])
        until(second, lambda: second.commit() > 0)  # noqa: B023
        crash(second)
        with replica(kept, other) as p:
            assert rows_of(p, "extra") == [(7, 7)]
            p.advance()
            check(p, *p.definition.views)
        if is_over:
            break
    assert at > 5


def refusing(number: int, left: list[int]) -> Callable[..., None]:
    def before(*_: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))

    return before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_x12_a_transaction_is_retried_after_a_refused_system_call(number: int) -> None:
    """Seen to fail: the pipeline ended with `unexpected`. It must wait, and answer that the push is bound."""
    left = [0]
    with stepping(refusing(number, left)), open_pipeline(storage(), engine("revenue", "share")) as p:
        p.push("orders", [order(1)])
        p.commit()
        left[0] = 2
        with p.transaction() as pushed:
            pushed.push("orders", [order(2)])
        with pytest.raises(SystemRefused, match=os.strerror(number)):
            p.take(pushed)
        assert pushed.time == 2, "the push is not bound"
        with pytest.raises(SystemRefused):
            p.advance()
        p.advance()
        assert p.time == 2
        check(p, "revenue", "share")
        assert p.status().state == "running"


@contextmanager
def refused_in_tables(at: int) -> Iterator[list[int]]:
    """Fail the n-th system call that the state of a table needs to apply a delta."""
    prepare, calls = Arrangement.prepare, [0]

    def prepared(self: Arrangement, delta: pa.Table) -> Callable[[], None]:
        if ".keyed" in self.name:
            calls[0] += 1
            if calls[0] == at:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return prepare(self, delta)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Arrangement, "prepare", prepared)
        yield calls


@pytest.mark.parametrize("at", [1, 2])
def test_x12_a_system_call_refused_in_one_table_applies_the_transaction_once_to_all(at: int) -> None:
    """Fails if one table has applied the transaction when another is refused: the pipeline ended with `left by
    half`."""
    tables = (ORDERS, EXTRA, NOTES)
    with open_pipeline(storage(), engine("revenue", "share", tables=tables)) as p:
        p.push("orders", [order(1)])
        p.push("extra", [{"id": 1, "v": 1}])
        p.commit()
        with refused_in_tables(at) as calls:
            with p.transaction() as pushed:
                pushed.push("orders", [order(1, 30), order(2)])
                pushed.push("extra", [{"id": 1, "v": 2}])
            with pytest.raises(SystemRefused, match=os.strerror(errno.EMFILE)):
                p.take(pushed)
            assert p.status().state == "running", "the client got an error; the loop waits"
            p.advance()
            assert calls[0] == at + 2, "both tables must apply the transaction once"
        assert (p.time, pushed.time) == (2, 2)
        check(p, "revenue", "share")
        assert rows_of(p, "extra") == [(1, 2)]
        p.push("orders", deletes=[{"id": 1}])
        p.commit()
        check(p, "revenue", "share")


def test_x12_a_checkpoint_is_retried_after_a_refused_system_call() -> None:
    """Fails if only storage errors are retried: the loop ended with the system's own error."""
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1)])
        p.commit()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Machine, "save", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many")))
            p.try_checkpoint()
            [found] = [one for one in p.status().problems if one.error_code == "system_refused"]
            assert (found.state, p.status().state) == ("warning", "running")
            with pytest.raises(SystemRefused):
                p.checkpoint()
        p.push("orders", [order(2)])
        p.commit()
        assert p.checkpoint().time == 3
        assert not p.status().problems


def test_x12_opening_is_retried_after_a_refused_system_call() -> None:
    """Fails if the error ends opening: a restarted process would meet the same error."""
    kept = shared()
    with open_pipeline(kept) as p:
        p.push("orders", [order(1)])
        p.commit()
        p.close(checkpoint=False)
    left, restore = [2], Checkpoints.restore

    def refused(*given: Any, **chosen: Any) -> Any:
        refuse(given)
        return restore(*given, **chosen)

    refuse = refusing(errno.EMFILE, left)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Checkpoints, "restore", refused)
        p = open_pipeline(kept)
    with p:
        assert left == [0]
        assert p.status().state == "running"
        check(p, "revenue", "counts")


def test_x12_a_replay_is_retried_after_a_refused_system_call() -> None:
    kept = shared()
    settings = replace(QUICK, portion_rows_max=1)
    first, second = replica(kept, settings=settings), replica(kept, settings=settings)
    with first.transaction() as pushed:
        pushed.push("orders", [order(1)])
        pushed.push("notes", [{"text": "x"}])
        pushed.push("orders", [order(2)])
    first.take(pushed)
    calls = [0]

    def before(*_: object) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with stepping(before):
        with pytest.raises(SystemRefused):
            caught_up(second)
        caught_up(second)
    assert calls[0] > 2
    check(second, "revenue", "counts")
    for p in (first, second):
        p.close(checkpoint=False)


@pytest.mark.parametrize("threads", [False, True])
def test_x7_damage_that_only_a_backfill_reads_does_not_end_the_pipeline(threads: bool) -> None:
    """Seen to fail: the pipeline ended with `damaged`, again after each start."""
    kept, is_damaged = shared(), [True]
    with open_pipeline(kept, engine("revenue")) as p:
        p.push("orders", [order(1)])
        p.commit()

    def before(cohort: SmallCohort, _: Mapping[str, pa.Table]) -> None:
        if [*cohort.views] == ["share"] and is_damaged[0]:
            raise BlobMissing(path="parts/orders", why="it is not there")

    with stepping(before), open_pipeline(kept, engine("revenue", "share"), threads=threads) as p:
        p.wait_until_hydrated()
        p.push("orders", [order(2)])
        p.commit()
        p.wait_until_hydrated()
        assert rows_of(p, "revenue") == [("ann", 20)]
        assert p.status().state == "running"
        [found] = [one for one in p.status().problems if one.error_code == "blob_missing"]
        assert "view 'share'" in found.why
        is_damaged[0] = False
        while p.definition.list_away(ComponentState.HYDRATING):
            p.advance()
            p.wait_until_hydrated()
        check(p, "revenue", "share")
        assert not p.status().problems


@contextmanager
def refusing_the_second_stage(names: Sequence[str]) -> Iterator[tuple[Pipeline, Callable[[], None]]]:
    """A pipeline with tables of these names, and a call from which on the second staged fragment is refused."""
    is_counting, puts = False, 0

    def choose(_: str, key: str) -> Fault:
        nonlocal puts
        puts += is_counting and key.startswith(staged_prefix())
        return Fault.REFUSED if is_counting and puts == 2 else Fault.DONE

    def count() -> None:
        nonlocal is_counting
        is_counting = True

    blob = FaultyBlob(storage().blob, Faults(choose, lambda *_: Fault.DONE))
    made = SmallEngine([replace(NOTES, name=name) for name in names], [])
    with open_pipeline(storage(blob), made, settings=replace(AT_ONCE, push_buffer_bytes=2500)) as p:
        yield p, count


def test_x12_a_push_that_storage_refuses_adds_no_row_and_can_be_repeated() -> None:
    """Otherwise the rows are in the transaction twice, and so are those that were staged before the refusal."""
    names = ["a", "b", "c"]
    with refusing_the_second_stage(names) as (p, count):
        with p.transaction() as pushed:
            for name in ("a", "b"):
                pushed.push(name, [{"text": 1000 * name}])
            count()
            with pytest.raises(Unavailable):
                pushed.push("c", [{"text": 1000 * "c"}])
            pushed.push("c", [{"text": 1000 * "c"}])
        p.take(pushed)
        assert (pushed.rows, [rows_of(p, name) for name in names]) == (3, [[(1000 * name,)] for name in names])


def test_x12_a_commit_that_storage_refuses_keeps_the_pushed_rows() -> None:
    """Otherwise a repeated commit succeeds without them."""
    with refusing_the_second_stage(["a", "b"]) as (p, count):
        p.push("a", [{"text": "a"}])
        p.push("b", [{"text": "b"}])
        count()
        with pytest.raises(Unavailable):
            p.commit()
        p.commit()
        assert [rows_of(p, name) for name in ("a", "b")] == [[("a",)], [("b",)]]


@pytest.mark.parametrize("step", ["bind", "complete"])
def test_x12_after_a_commit_that_fails_the_rows_can_be_dropped_unless_they_are_bound(step: str) -> None:
    """Otherwise a program that aborts, pushes the rows again and commits has them twice."""
    is_bound = step == "complete"

    def fail(*_: object) -> None:
        raise Unavailable(path="storage", why="away")

    with open_pipeline(storage(), engine(), settings=AT_ONCE) as p:
        p.push("notes", [{"text": "first"}])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Runner, step, fail)
            with pytest.raises(Unavailable):
                p.commit()
        if is_bound:
            with pytest.raises(NotAllowedNow, match="transaction 1 has the rows"):
                p.abort()
        else:
            p.abort()
            p.push("notes", [{"text": "second"}])
        p.commit()
        assert rows_of(p, "notes") == [("first" if is_bound else "second",)]
        p.abort()
        p.push("notes", [{"text": "third"}])
        p.commit()
        assert len(rows_of(p, "notes")) == 2
