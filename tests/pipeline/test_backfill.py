"""X2, X3, X4, J12: views join, leave and recover while transactions wait for storage, and during checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import OutcomeUnknown, TimeCompacted, Unavailable, Unexpected, ViewFailed
from evertide.pipeline.backfill.backfill import Backfill
from evertide.pipeline.backfill.scheduler import BackfillScheduler
from evertide.pipeline.engine import Cohort
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.state.members import Members
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shard
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Guard, Record, Stale, Write
from evertide.store.paths import GENERATION, shard_key
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import ORDERS, SETTINGS, VIEWS, Row, crash, engine, open_pipeline, rows_of, storage
from tests.pipeline.replica_kit import caught_up, pair, shared

SELDOM = replace(SETTINGS, retry_view_s=1e6, retry_limit_s=0.05)
"""A failed view is retried only when a test requests it."""
PORTIONS = replace(SELDOM, portion_rows_max=1)


def order(number: int, amount: int) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


class Failing(MemoryMeta):
    """Commits that write to a key with the prefix `down` fail: before they are done, or done with the answer lost."""

    def __init__(self) -> None:
        super().__init__(SystemRuntime())
        self.down = ""
        self.error: type[Unavailable | OutcomeUnknown] = Unavailable
        self.is_done = False
        self.is_blind = False

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        if not self.down or not any(write.key.startswith(self.down) for write in writes):
            return super().commit(writes, guards)
        if self.is_done and not self.is_blind:
            self.is_blind = True  # otherwise the commit would be read back
            super().commit(writes, guards)
        raise self.error(path="meta", why="a test has it so")

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        if self.is_blind:
            raise Unavailable(path="meta", why="a test has it so")
        return super().scan(key, after, limit)

    @contextmanager
    def away(
        self, prefix: str, error: type[Unavailable | OutcomeUnknown] = Unavailable, *, is_done: bool = False
    ) -> Iterator[None]:
        self.down, self.error, self.is_done = prefix, error, is_done
        try:
            yield
        finally:
            self.down, self.is_blind = "", False


@contextmanager
def once_computed(call: Callable[[], None], *, is_before: bool = False) -> Iterator[None]:
    """Run `call` when the next backfill has computed its views and has not caught up yet; or before it computes them,
    when it has chosen the time of the tables' content."""
    compute = Backfill._compute

    def computed(self: Backfill, members: Members, is_stopping: Callable[[], bool]) -> None:
        Backfill._compute = compute  # type: ignore[method-assign]
        if is_before:
            call()
        compute(self, members, is_stopping)
        if not is_before:
            call()

    Backfill._compute = computed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Backfill._compute = compute  # type: ignore[method-assign]


def check(p: Pipeline, *views: str) -> None:
    """Check that the views equal the result of plain Python over the tables at the same time."""
    tables = {name: p.view(name).to_pylist() for name in ("orders", "notes")}
    for view in views:
        assert p.view(view).time == p.time, view
        expected = sorted((tuple(row.values()) for row in VIEWS[view].function(tables)), key=repr)
        assert rows_of(p, view) == expected, view


def failed(p: Pipeline) -> None:
    """Return a pipeline whose view `share` failed on a row that is now corrected; a retry recomputes it."""
    p.push("orders", [order(1, 0)])
    p.commit()
    p._leader_tasks.backfills._tried_s["share"] = 1e18
    p.push("orders", [order(1, 4)])
    p.commit()
    assert p.definition.list_away(ComponentState.FAILED) == ["share"]


@pytest.mark.parametrize("settings", [SELDOM, PORTIONS], ids=["whole", "portions"])
@pytest.mark.parametrize(
    ("error", "is_done"),
    [(Unavailable, False), (OutcomeUnknown, False), (OutcomeUnknown, True)],
    ids=["away", "lost", "done"],
)
def test_x2_a_backfill_joins_while_a_transaction_waits_for_its_commit(
    error: type[Unavailable | OutcomeUnknown], is_done: bool, settings: Any
) -> None:
    """Without `settle` before the join, the view would miss the waiting transaction."""
    meta = Failing()
    with open_pipeline(storage(meta=meta), engine("revenue", "counts", "share"), settings=settings) as p:
        failed(p)

        def waits() -> None:
            with p.transaction() as given:
                given.push("orders", [order(2, 10)])
            with p.transaction() as given:
                given.push("orders", [order(3, 5)])
                given.push("notes", [{"text": "x"}])
            with meta.away(shard_key(""), error, is_done=is_done), pytest.raises(error):
                p._advancer.step()
            assert p._runner.outcome is not None

        with once_computed(waits):
            p.retry("share")
        p.advance()
        check(p, "revenue", "counts", "share")
        p.push("orders", deletes=[2, 3])
        p.commit()
        check(p, "revenue", "counts", "share")


def test_x2_a_backfill_joins_between_two_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The portions before the join must reach the view as well."""
    meta = Failing()
    with open_pipeline(storage(meta=meta), engine("revenue", "counts", "share"), settings=PORTIONS) as p:
        failed(p)

        def half() -> None:
            for number in range(2, 6):
                with p.transaction() as given:
                    given.push("orders", [order(number, 10)])
            real, left = p.storage.blob.put, 3
            settings = replace(PORTIONS, inline_bytes_max=1)
            monkeypatch.setattr(p._runner.members.shards, "settings", settings)

            def put(key: str, data: bytes) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Unavailable(path=key, why="a test has it so")
                real(key, data)

            with monkeypatch.context() as patched:
                patched.setattr(p.storage.blob, "put", put)
                with pytest.raises(Unavailable):
                    p._advancer.step()
            assert p._runner.outcome is not None
            assert not p._runner.outcome.is_complete

        with once_computed(half):
            p.retry("share")
        p.advance()
        check(p, "revenue", "counts", "share")


def test_x2_a_follower_commits_while_the_leader_joins_a_view() -> None:
    """Without the guard on the committed upper, the view's shard would lack a transaction and stop every replica."""
    with pair(shared(), "revenue", "share") as (first, second):
        failed(first)
        caught_up(first, second)
        change, is_late = Runner.change, True

        def late(self: Runner, **changes: Any) -> None:
            nonlocal is_late
            if is_late:
                is_late = False
                second.push("orders", [order(2, 10)])
                second.commit()
            change(self, **changes)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Runner, "change", late)
            first.retry("share")
        for p in (first, second):
            p.push("orders", [order(3 + p.time, 20)])
            p.commit()
            caught_up(first, second)
        for p in (first, second):
            assert len(rows_of(p, "share")) == len(rows_of(p, "orders")) == 4


@pytest.mark.parametrize(("error", "is_done"), [(Unavailable, False), (OutcomeUnknown, False), (OutcomeUnknown, True)])
def test_x2_a_join_is_retried_if_storage_does_not_answer(
    error: type[Unavailable | OutcomeUnknown], is_done: bool
) -> None:
    meta = Failing()
    with open_pipeline(storage(meta=meta), engine("revenue", "share"), settings=SELDOM) as p:
        failed(p)
        with meta.away(GENERATION, error, is_done=is_done), pytest.raises(error):
            p.retry("share")
        p.push("orders", [order(2, 10)])
        p.commit()
        if p.definition.list_away(ComponentState.FAILED):
            p.retry("share")
        p.push("orders", deletes=[2])
        p.commit()
        check(p, "revenue", "share")


@pytest.mark.parametrize("prefix", [GENERATION, shard_key("share")], ids=["join", "catching up"])
def test_x2_a_commit_of_a_backfill_whose_answer_was_lost_is_not_repeated(prefix: str) -> None:
    """The backfill waits and goes on, as with threads. Fails if it joins twice, which ends the shard that has joined,
    or appends a transaction twice."""
    meta = Failing()
    with open_pipeline(storage(meta=meta), engine("revenue", "share"), settings=SELDOM) as p:
        failed(p)
        waits = []

        def wait(_: BackfillScheduler) -> bool:
            waits.append(meta.down)
            meta.down, meta.is_blind = "", False
            return len(waits) < 5

        def commit_another() -> None:
            p.push("orders", [order(2, 10)])
            p.commit()
            meta.down, meta.error, meta.is_done = prefix, OutcomeUnknown, True

        with pytest.MonkeyPatch.context() as patched, once_computed(commit_another):
            patched.setattr(BackfillScheduler, "_wait", wait)
            p._leader_tasks.backfills._has_threads = True
            p._leader_tasks.backfills._run(["share"])
        assert waits == [prefix]
        p.push("orders", deletes=[2])
        p.commit()
        check(p, "revenue", "share")


def test_x2_a_transaction_without_the_state_of_a_member_view_is_not_committed() -> None:
    """Fails if only the views with state are appended: the other would miss the transaction."""
    with open_pipeline(storage(), engine("revenue")) as p:
        p._runner.machine.cohorts.clear()
        p.push("orders", [order(1, 4)])
        with pytest.raises(Unexpected, match=r"the views \['revenue'\] are members, and have no state"):
            p.commit()


@pytest.mark.parametrize(("error", "is_done"), [(Unavailable, False), (OutcomeUnknown, False), (OutcomeUnknown, True)])
@pytest.mark.parametrize("portion", [0, 1, 2])
def test_x3_a_view_that_fails_in_a_portion_during_an_outage_leaves_the_others_right(
    portion: int, error: type[Unavailable | OutcomeUnknown], is_done: bool
) -> None:
    """If the portion were not in the outcome before the generation changes, it would be applied twice."""
    meta = Failing()
    made = engine("revenue", "counts", "share")
    with open_pipeline(storage(meta=meta), made, settings=PORTIONS) as p:
        p.push("orders", [order(9, 50)])
        p.commit()
        rows = [order(1, 2), order(2, 5), order(3, 10)]
        rows[portion] = order(portion + 1, 0)
        for row in rows:
            with p.transaction() as given:
                given.push("orders", [row, order(10 + row["id"], 7)])
            with p.transaction() as given:
                given.push("notes", [{"text": "n"}])
        with meta.away(GENERATION, error, is_done=is_done), pytest.raises(error):
            p._advancer.step()
        p.advance()
        check(p, "revenue", "counts")
        assert rows_of(p, "share") == [(9, 2)]
        p.push("orders", [order(portion + 1, 20)])
        p.commit()
        check(p, "revenue", "counts", "share")


def test_x3_a_transaction_whose_last_portion_is_stored_late_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All portions are computed and the machine has moved on: the transaction must be completed, not refused."""
    with open_pipeline(storage(), settings=replace(PORTIONS, inline_bytes_max=1)) as p:
        for number in range(2):
            with p.transaction() as given:
                given.push("orders", [order(number, 10)])
        real = p.storage.blob.put

        def put(key: str, data: bytes) -> None:
            outcome = p._runner.outcome
            if key.startswith("parts/") and outcome is not None and outcome.count == 2:
                raise Unavailable(path=key, why="a test has it so")
            real(key, data)

        with monkeypatch.context() as patched:
            patched.setattr(p.storage.blob, "put", put)
            with pytest.raises(Unavailable):
                p._advancer.step()
        p.advance()
        check(p, "revenue", "counts")


def test_x3_a_view_fails_while_a_peer_changes_the_generation() -> None:
    """The leader joins a view while a follower computes portions, one of which makes another view fail.

    The joining view must receive the portions that the follower computed before.
    """
    views = ("revenue", "counts", "share")
    with pair(shared(), *views, settings=replace(PORTIONS, lead_interval_s=1e-6)) as (first, second):
        failed(first)
        first.push("orders", [order(5, 50)])
        first.commit()
        caught_up(first, second)
        step, steps = Machine.step, 0

        def stepped(self: Machine, *args: Any, **options: Any) -> Any:
            nonlocal steps
            if self is second._runner.machine:
                steps += 1
                if steps == 2:
                    first.retry("share")
                    self.cohorts[0] = Picky(self.cohorts[0])
            return step(self, *args, **options)

        for number in range(6, 9):
            with second.transaction() as given:
                given.push("orders", [order(number, 10)])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Machine, "step", stepped)
            second._advancer.step()
        caught_up(first, second)
        for p in (first, second):
            assert p.definition.list_away(ComponentState.FAILED) == ["counts"]
            check(p, "revenue", "share")
        first.push("orders", deletes=[6, 7, 8])
        first.commit()
        caught_up(first, second)
        for p in (first, second):
            check(p, "revenue", "share")


class Picky:
    """A cohort whose view `counts` fails in the next step."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cohort, name)

    def step(self, deltas: Any) -> Any:
        if "counts" in self._cohort.views:
            raise ViewFailed(views=("counts",), time=-1, why="a test has it so")
        return self._cohort.step(deltas)


def long_backfill(p: Pipeline, transactions: int) -> Callable[[], None]:
    def meanwhile() -> None:
        for number in range(transactions):
            p.push("notes", [{"text": str(number)}])
            p.push("orders", [order(20 + number, 5)])
            p.commit()
            p.checkpoint()

    return meanwhile


def test_x4_a_backfill_that_spans_several_checkpoints_joins() -> None:
    """Without holds on all that the backfill reads, the second checkpoint would compact it (`TimeCompacted`)."""
    with open_pipeline(storage(), engine("revenue", "counts", "share"), settings=SELDOM) as p:
        failed(p)
        before, join = p.time, Backfill._join
        held: list[int] = []

        def joined(self: Backfill) -> bool:
            held.extend(time for name, time in self._held[0].holds.items() if name.startswith("backfill-"))
            return join(self)

        with pytest.MonkeyPatch.context() as patched, once_computed(long_backfill(p, 5)):
            patched.setattr(Backfill, "_join", joined)
            p.retry("share")
        assert held[0] > before, "the hold did not move while the backfill caught up"
        check(p, "revenue", "counts", "share")
        assert holds(p) == {"checkpoint"}
        p.checkpoint()
        p.push("orders", [order(1, 10)])
        p.commit()
        p.checkpoint()
        assert all(shard.since >= p.time - 2 for shard in p._runner.members.open_all().values())


def holds(p: Pipeline) -> set[str]:
    return {name for shard in p._runner.members.open_all().values() for name in shard.holds}


def test_x4_a_view_is_added_beside_transactions_and_checkpoints() -> None:
    kept, go_on, begun = shared(), threading.Event(), threading.Event()
    with open_pipeline(kept, engine("revenue", tables=(ORDERS,))) as p:
        p.push("orders", [order(1, 4)])
        p.commit()
    here = threading.get_ident()

    def slow(tables: Any) -> list[Row]:
        if threading.get_ident() != here:
            begun.set()
            assert go_on.wait(60)
        return [{"n": len(tables["orders"])}]

    number = SmallView("n", pa.schema([("n", pa.int64())]), ("orders",), slow)
    with open_pipeline(kept, SmallEngine([ORDERS], [VIEWS["revenue"], number]), threads=True) as p:
        assert begun.wait(60)
        for each in range(4):
            p.push("orders", [order(10 + each, 1)])
            p.commit()
            p.checkpoint()
        go_on.set()
        assert p.wait_until_hydrated(60)
        p.push("orders", [order(99, 1)])
        p.commit()
        assert rows_of(p, "n") == [(6,)]
        assert p.status().state == "running"


def test_x4_a_backfill_whose_hold_comes_too_late_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backfill leaves no hold behind, and does not end the pipeline."""
    kept = shared()
    with open_pipeline(kept, engine("revenue")) as p:
        p.push("orders", [order(1, 4)])
        p.commit()
    hold, refused = Shard.hold, threading.Event()

    def late(self: Shard, name: str, time: int) -> None:
        if name.startswith("backfill-") and self.name.startswith("orders") and not refused.is_set():
            refused.set()
            raise TimeCompacted(where=self.name, why="a test has it so", as_of=time, since=time + 1)
        hold(self, name, time)

    monkeypatch.setattr(Shard, "hold", late)
    with open_pipeline(kept, engine("revenue", "counts"), threads=True) as p:
        assert refused.wait(60)
        p.wait_until_hydrated(60)
        assert not any(name.startswith("backfill-") for name in holds(p))
        p.push("orders", [order(2, 4)])
        p.commit()
        p.advance()
        assert p.wait_until_hydrated(60)
        check(p, "revenue", "counts")


def test_x4_holds_of_an_ended_process_are_released() -> None:
    """Holds have no timeout: without the release, the tables would keep their history for ever."""
    kept = shared()
    p = open_pipeline(kept, engine("revenue", "share"), settings=SELDOM)
    failed(p)

    def killed() -> None:
        crash(p)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, once_computed(killed):
        patched.setattr(Shard, "release", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            p.retry("share")
    assert any(name.startswith("backfill-") for name in holds(p))
    with open_pipeline(kept, engine("revenue", "share"), settings=SELDOM) as p:
        assert not any(name.startswith("backfill-") for name in holds(p))


@pytest.mark.parametrize("is_before", [False, True], ids=["after it failed", "before it fails"])
def test_j12_a_row_corrected_during_the_backfill_makes_the_view_recover(is_before: bool) -> None:
    """The view failed at a time before the correction: no later change is needed for the retry. Fails if the view
    counts as failed at the time of the error, instead of the time of the content."""
    with open_pipeline(storage(), engine("revenue", "share")) as p:
        p.push("orders", [order(1, 0)])
        p.commit()

        def repair() -> None:
            p.push("orders", [order(1, 4)])
            p.commit()

        with once_computed(repair, is_before=is_before):
            p.push("orders", [order(2, 5)])
            p.commit()
        assert p.definition.list_away(ComponentState.FAILED) == ["share"]
        p.advance()
        check(p, "revenue", "share")


def test_j12_a_row_corrected_before_a_restart_makes_the_view_recover() -> None:
    """Fails if a process that did not see the correction does not look for it in the shards of the tables."""
    kept = storage()
    with open_pipeline(kept, engine("revenue", "share"), settings=SELDOM) as p:
        failed(p)
        p.checkpoint()  # else the next process replays the correction
        crash(p)
    with open_pipeline(kept, engine("revenue", "share"), settings=SELDOM) as p:
        p.advance()
        check(p, "revenue", "share")
