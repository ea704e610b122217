"""Replicas: several processes run one pipeline on one storage. Here in one process, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from evertide.errors import (
    Conflict,
    EvertideError,
    Fenced,
    NotAllowedNow,
    OutcomeUnknown,
    Recomputing,
    TimeCompacted,
    Unavailable,
)
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.maintenance.checkpointer import Checkpointer
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.replicas.leadership import Leadership, promote
from evertide.pipeline.replicas.ownership import RUNNING, Leader, Role, end_registration
from evertide.pipeline.transaction.machine import Machine
from evertide.pipeline.transaction.runner import Runner
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.maintenance import Maintenance
from evertide.store.faulty import Fault, Faults, FaultyMeta
from evertide.store.meta import Meta, Write
from evertide.store.open import Storage
from evertide.store.paths import LEADER, beat_key, writer_key
from evertide.store.process import this_process
from evertide.store.sealed import seal
from evertide.store.writers import Beat, Registration, Writer, end_silent_writers, read_registrations
from evertide.testing.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, VIEWS, Row, crash, engine, open_pipeline, rows_of, storage
from tests.pipeline.sink_kit import Bucket, into, is_right, shop, with_sink

QUICK = replace(SETTINGS, lead_interval_s=1e-6, inline_bytes_max=256)


class Shared(Storage):
    """One storage for several pipelines: who closes it leaves it to the others."""

    def close(self) -> None:
        pass


def shared() -> Storage:
    made = storage()
    return Shared(made.blob, made.meta, made.root)


def replica(
    kept: Storage, made: SmallEngine | None = None, role: Role = Role.REPLICA, settings: Settings = QUICK
) -> Pipeline:
    return open_pipeline(kept, made, role=role, settings=settings)


@contextmanager
def pair(kept: Storage, *views: str, settings: Settings = QUICK) -> Iterator[tuple[Pipeline, Pipeline]]:
    """The one that leads, and one that follows."""
    first = replica(kept, engine(*views), settings=settings)
    second = replica(kept, engine(*views), settings=settings)
    try:
        yield first, second
    finally:
        for one in (first, second):
            if not one._is_closed:
                one.close(checkpoint=False)


def order(number: int, amount: int = 10) -> Row:
    return {"id": number, "customer": f"c{number % 2}", "amount": amount}


def leaders(*several: Pipeline) -> list[Pipeline]:
    return [one for one in several if one.leads]


def caught_up(*several: Pipeline) -> None:
    last = max(one._context.journal.committed_upper for one in several)
    for one in several:
        while one.time < last - 1:
            assert one.advance() is not None


def advance_all(p: Pipeline) -> None:
    """Until there is nothing to do for three steps."""
    idle = 0
    while idle < 3:
        idle = idle + 1 if p.advance() is None else 0


def test_a_replica_follows_and_takes_over() -> None:
    """If what the leader committed did not go through its operators, it would go on from an older state."""
    kept = shared()
    with pair(kept) as (first, second):
        for number in range(5):
            first.push("orders", [order(number)])
            first.push("notes", [{"text": f"n{number}"}])
            first.commit()
        caught_up(second)
        assert second.time == first.time
        assert leaders(first, second) == [first]
        crash(first)
        second.push("orders", [order(7)])
        second.push("orders", deletes=[2])
        assert second.commit() == 6
        assert second in leaders(first, second)
        assert rows_of(second, "counts") == [(5, 5)]
        assert rows_of(second, "revenue") == [("c0", 20), ("c1", 30)]
        second.checkpoint()
        third = replica(kept)
        third.advance()
        assert third.time == second.time
        third.close()


def test_rows_may_be_pushed_to_any_of_them() -> None:
    with pair(shared()) as (first, second):
        for number in range(6):
            one, other = (first, second) if number % 2 else (second, first)
            one.push("orders", [order(number)])
            time = one.commit()
            assert rows_of(one, "orders") == rows_of(other, "orders")
            caught_up(first, second)
            assert first.time == second.time == time
        assert rows_of(second, "counts") == [(6, 0)]


def test_a_repeat_that_goes_to_another_replica_is_taken_once() -> None:
    with pair(shared()) as (first, second):
        for one in (first, second, first):
            with one.transaction("shop", 1) as pushed:
                pushed.push("orders", [order(1)])
            assert one.take(pushed) == 1
        caught_up(first, second)
        assert rows_of(first, "counts") == [(1, 0)]


def test_two_that_compute_the_same_transaction_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds it committed: it compares, appends nothing, and goes on."""
    with pair(shared()) as (first, second):
        second.push("orders", [order(1)])
        real = Runner.commit

        def commit(runner: Runner) -> None:
            if runner.outcome is not None:
                monkeypatch.setattr(Runner, "commit", real)
                first.advance()  # the leader sees what is bound, and completes it
            real(runner)

        monkeypatch.setattr(Runner, "commit", commit)
        assert second.commit() == 1
        assert first.time == second.time == 1
        recorded = first._context.journal.committed(1)
        assert recorded is not None
        assert recorded.writer == first._writer.id
        second.push("orders", [order(2)])
        assert second.commit() == 2
        caught_up(first, second)
        assert rows_of(first, "counts") == [(2, 0)]


@pytest.mark.parametrize("is_racing", [False, True])
def test_j11_a_follower_that_comes_to_something_else_computes_the_view_again(
    is_racing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison of digests, it would go on with other state than everybody else's."""
    kept = shared()
    first = replica(kept)
    made, is_wrong = engine(), True
    right = made.small_views[0].function

    def other(tables: Mapping[str, list[Row]]) -> list[Any]:
        return [{**row, "amount": row["amount"] + is_wrong} for row in right(tables)]

    made.small_views = [replace(made.small_views[0], function=other), made.small_views[1]]
    second = replica(kept, made, settings=replace(QUICK, retry_view_s=0.05))
    if is_racing:
        real = Runner.commit

        def commit(runner: Runner) -> None:
            if runner.outcome is not None:
                monkeypatch.setattr(Runner, "commit", real)
                first.advance()
            real(runner)

        monkeypatch.setattr(Runner, "commit", commit)
        second.push("orders", [order(1)])
        assert second.commit() == 1
    else:
        first.push("orders", [order(1)])
        first.commit()
    for _ in range(2):  # computed again, it is as wrong as before; then it waits
        with pytest.raises(Recomputing, match="revenue"):
            advance_all(second)
    assert len([*kept.blob.list("evidence")]) == 1
    first.push("orders", [order(2)])
    assert first.commit() == 2
    is_wrong = False
    while second.time < first.time:
        with suppress(Recomputing):
            second.advance()
    second.push("orders", [order(3)])
    second.commit()
    caught_up(first, second)
    assert rows_of(first, "revenue") == rows_of(second, "revenue") == [("c0", 10), ("c1", 20)]
    second.close()
    first.close()


def test_a_view_that_fails_leaves_and_comes_back_on_all_of_them() -> None:
    """If the follower kept to its generation, it would diverge at the first transaction without the view."""
    with pair(shared(), "revenue", "share") as (first, second):
        first.push("orders", [order(1, 5)])
        first.commit()
        caught_up(first, second)
        first.push("orders", [order(2, 0)])
        first.commit()
        caught_up(first, second)
        assert second.definition.away("failed") == ["share"]
        assert [list(cohort.views) for cohort in second._runner.machine.cohorts] == [["revenue"]]
        second.push("orders", [order(2, 4)])
        second.commit()
        caught_up(first, second)
        first.push("orders", [order(3, 10)])  # touches it, and it is tried again
        first.commit()
        caught_up(first, second)
        assert rows_of(first, "share") == [(1, 20), (2, 25), (3, 10)]
        crash(first)
        second.push("orders", [order(4, 50)])
        second.commit()
        assert rows_of(second, "share") == [(1, 20), (2, 25), (3, 10), (4, 2)]


def test_a_view_that_fails_at_a_follower_leaves_at_the_leader() -> None:
    with pair(shared(), "revenue", "share") as (first, second):
        second.push("orders", [order(1, 0)])
        second.commit()
        caught_up(first, second)
        assert first.definition.away("failed") == ["share"]
        first.push("orders", [order(1, 50)])
        first.commit()
        caught_up(first, second)
        assert rows_of(second, "share") == [(1, 2)]


def test_a_generation_that_moves_while_a_transaction_waits_for_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view joined meanwhile: its part of the transaction is computed before the commit, or it would miss it."""
    with pair(shared(), "revenue", "share") as (first, second):
        first.push("orders", [order(1, 0)])
        first.commit()
        first.push("orders", [order(1, 5)])
        first._leader_tasks.backfills._tried_s["share"] = 1e18  # not now
        first.commit()
        caught_up(first, second)
        real = Runner.commit

        def commit(runner: Runner) -> None:
            if runner.outcome is None:
                return
            monkeypatch.setattr(Runner, "commit", real)
            first._leader_tasks.backfills.retry("share")
            real(runner)

        monkeypatch.setattr(Runner, "commit", commit)
        second.push("orders", [order(2, 10)])
        second.commit()
        caught_up(first, second)
        assert rows_of(second, "share") == [(1, 20), (2, 10)]
        assert rows_of(first, "share") == rows_of(second, "share")


def test_another_script_is_refused_while_one_runs() -> None:
    kept = shared()
    first = replica(kept, engine("revenue"))
    with pytest.raises(Conflict, match="another version of the script"):
        replica(kept, engine("revenue", "share"))
    with pytest.raises(Conflict, match="runs it"):
        open_pipeline(kept, engine("revenue"))
    first.push("orders", [order(1)])
    assert first.commit() == 1
    first.close()


def test_a_read_only_replica_follows_and_is_promoted() -> None:
    kept = shared()
    first = replica(kept)
    second = replica(kept, role=Role.READ_ONLY)
    first.push("orders", [order(1)])
    first.commit()
    caught_up(first, second)
    assert rows_of(second, "counts") == [(1, 0)]
    second.push("orders", [order(9)])
    with pytest.raises(NotAllowedNow, match="read-only"):
        second.commit()
    second.abort()
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    first.push("orders", [order(2)])
    with pytest.raises(Fenced):
        first.commit()
    second.push("orders", [order(3)])
    second.advance()
    assert second._leader_tasks.is_active
    second.commit()
    assert rows_of(second, "counts") == [(2, 0)]
    with pytest.raises(Conflict, match="runs it"):
        open_pipeline(kept)
    first.close()
    second.close()
    with pytest.raises(NotAllowedNow, match="none"):
        promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)


def test_a_read_only_replica_does_not_take_over_by_itself() -> None:
    kept = shared()
    first, second = replica(kept), replica(kept, role=Role.READ_ONLY)
    crash(first)
    second.advance()
    assert not second._leader_tasks.is_active
    third = replica(kept)
    third.push("orders", [order(1)])
    third.commit()
    caught_up(second, third)
    assert rows_of(second, "counts") == [(1, 0)]
    second.close()
    third.close()


def test_collection_by_one_leaves_what_the_other_uses() -> None:
    """The follower's state rests on parts of a checkpoint that the leader has long dropped."""
    kept = shared()
    first = replica(kept)
    for number in range(8):
        first.push("orders", [order(number)])
        first.commit()
    first.checkpoint()
    second = replica(kept)
    for number in range(8, 30):
        first.push("orders", [order(number)])
        first.push("orders", deletes=[number - 8])
        first.commit()
        first.checkpoint()
        first._runner.machine.maintain()
        first._leader_tasks.checkpointer.collect()
        second.advance()
        second._leader_tasks.checkpointer.collect()
    crash(first)
    second.push("orders", [order(40)])
    second.commit()
    assert rows_of(second, "counts") == [(9, 0)]
    second.close()
    with open_pipeline(kept, settings=QUICK) as p:
        assert rows_of(p, "counts") == [(9, 0)]


def test_whoever_is_behind_takes_many_transactions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a follower of a leader at full speed never catches up, and takes over late."""
    steps: list[int] = []
    step = Machine.step

    def counted(machine: Machine, *arguments: Any, count: int = 1) -> Any:
        steps.append(count)
        return step(machine, *arguments, count=count)

    kept = shared()
    with pair(kept) as (first, second):
        for number in range(40):
            first.push("orders", [order(number)], deletes=[number - 3] if number % 3 else [])
            first.push("notes", [{"text": f"n{number}"}])
            first.commit()
        monkeypatch.setattr(Machine, "step", counted)
        assert second.advance() == first.time
        assert steps == [40]
        expected = {name: rows_of(first, name) for name in ("counts", "revenue")}
        crash(first)
        second.push("orders", [order(50)])
        second.commit()
        second.push("orders", deletes=[50])
        second.commit()
        assert {name: rows_of(second, name) for name in ("counts", "revenue")} == expected
        crash(second)
    del steps[:]
    with replica(kept) as again:  # replays what its checkpoint does not have
        assert sum(steps) > len(steps)
        assert {name: rows_of(again, name) for name in ("counts", "revenue")} == expected


@pytest.mark.parametrize("transactions", range(1, 7))
def test_a_follower_that_fell_behind_what_is_kept_starts_again_from_a_checkpoint(
    transactions: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that fell behind by a single transaction: to take t, the time before it must be readable."""
    with pair(shared()) as (first, second):
        for number in range(transactions):
            first.push("orders", [order(number)])
            first.commit()
            first.checkpoint()
        is_behind = second.time < max(one.since for one in first.status().collections)
        assert second.advance() == first.time
        assert ("restarting from the newest checkpoint" in caplog.text) == is_behind == (transactions > 1)
        crash(first)
        second.push("orders", [order(9)])
        second.commit()
        assert rows_of(second, "counts") == [(transactions + 1, 0)]


def test_the_next_version_takes_over_while_others_read() -> None:
    """Upgrade in place: it follows as read-only with its own script, and brings in what is new when it is promoted."""
    kept = shared()
    first = replica(kept, engine("revenue", "counts"))
    for number in range(4):
        first.push("orders", [order(number)])
        first.commit()
    made = engine("revenue", "share")
    doubled = made.small_views[0].function

    def twice(tables: Mapping[str, list[Row]]) -> list[Any]:
        return [{**row, "amount": row["amount"] * 2} for row in doubled(tables)]

    made.small_views = [replace(made.small_views[0], function=twice, version=2), made.small_views[1]]
    second = replica(kept, made, role=Role.READ_ONLY)
    first.push("orders", [order(4)])
    first.commit()
    caught_up(first, second)
    assert second.time == first.time
    assert rows_of(second, "revenue") == rows_of(first, "revenue") == [("c0", 30), ("c1", 20)]
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    first.push("orders", [order(5)])
    with pytest.raises(Fenced):
        first.commit()
    second.advance()
    assert second.leads
    assert rows_of(second, "revenue") == [("c0", 60), ("c1", 40)]
    assert rows_of(second, "share") == [(number, 10) for number in range(5)]
    assert set(second.definition.views) == {"revenue", "share"}
    second.push("orders", [order(5, 1)])
    second.commit()
    assert rows_of(second, "revenue") == [("c0", 60), ("c1", 42)]
    first.close()
    second.close()


def test_a_replica_of_the_old_version_that_follows_is_fenced_by_the_new_one() -> None:
    kept = shared()
    first, other = replica(kept, engine("revenue")), replica(kept, engine("revenue"))
    crash(first)
    with open_pipeline_of_next_version(kept, other) as second:
        second.push("orders", [order(1)])
        second.commit()
        other.push("orders", [order(2)])
        with pytest.raises(Fenced, match=r"unregistered|another version"):
            other.commit()
        second.push("orders", [order(3)])
        second.commit()
        assert rows_of(second, "counts") == [(2, 0)]
    other.close()


@contextmanager
def open_pipeline_of_next_version(kept: Storage, other: Pipeline) -> Iterator[Pipeline]:
    second = replica(kept, engine("revenue", "counts"), role=Role.READ_ONLY)
    promote(kept.meta, "", runtime=SystemRuntime(), settings=QUICK)
    second.advance()
    assert other._writer.id != second._writer.id
    try:
        yield second
    finally:
        second.close()


def test_one_that_was_fenced_notices_without_any_input() -> None:
    """Otherwise it would keep the connections of its sources for ever, and nobody else could have them."""
    settings = replace(QUICK, beat_interval_s=0.01)
    with open_pipeline(shared(), settings=settings, threads=True, role=Role.REPLICA) as p:
        p.advance()
        p._writer.unregister()
        with pytest.raises(Fenced):
            p.run()  # for ever, if it does not notice
        assert p.status().state == "failed"


def test_a_checkpoint_is_of_its_time_though_a_peer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards, and where the sources stand, are those of the checkpoint's time, or a repair would lose input."""
    with pair(shared()) as (first, second):
        first.push("orders", [order(1)])
        first.commit()
        caught_up(first, second)
        real = Machine.save

        def save(machine: Machine, *args: Any) -> Any:
            monkeypatch.setattr(Machine, "save", real)
            with second.transaction("shop", 7) as pushed:
                pushed.push("orders", [order(2)])
            second.take(pushed)
            return real(machine, *args)

        monkeypatch.setattr(Machine, "save", save)
        entry = first.checkpoint()
        manifest = first._context.checkpoints.read(entry)
        assert (entry.time, second.time) == (2, 2)
        assert "shop" not in manifest.positions["push"]
        caught_up(first, second)
        assert first.checkpoint().time == 3
        crash(first)
        crash(second)
    with open_pipeline(first.storage, settings=QUICK) as p:
        assert rows_of(p, "counts") == [(2, 0)]


def folded_while_saving(first: Pipeline, second: Pipeline, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A follower commits, and maintenance compacts its transactions with older ones, during the next save."""
    real = Machine.save

    def save(machine: Machine, *args: Any) -> Any:
        patch.setattr(Machine, "save", real)
        found = real(machine, *args)
        for number in range(100, 106):
            second.push("orders", [order(number)])
            second.commit()
        Maintenance(first._context.shards, first._writer, first._context.checkpoints.pinned).run_once()
        return found

    return lambda: patch.setattr(Machine, "save", save)


def test_x5_a_follower_commits_while_the_leader_saves_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards' states are those of the checkpoint's time, and no collector deletes a part of them."""
    with pair(shared()) as (first, second):
        for number in range(5):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        folded_while_saving(first, second, monkeypatch)()
        entry = first.checkpoint()
        assert entry.time == 6
        first._context.checkpoints.verify(entry, shards=True)
        first.run(until_idle=True)
        assert first.time == second.time == 11
        first.close()
        crash(second)
    with open_pipeline(first.storage, settings=QUICK) as p:
        assert rows_of(p, "counts") == [(11, 0)]


def test_x5_a_draft_that_is_out_of_date_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what the leader took last and the look at the shards a follower commits, and all is compacted."""
    with pair(shared()) as (first, second):
        for number in range(5):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        real, tries = Checkpointer._draft, []

        def draft(checkpointer: Checkpointer, *args: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                for number in range(8):
                    second.push("orders", [order(100 + number)])
                    second.commit()
                Maintenance(first._context.shards, first._writer, first._context.checkpoints.pinned).run_once()
            return real(checkpointer, *args)

        monkeypatch.setattr(Checkpointer, "_draft", draft)
        assert first.checkpoint().time == second.time + 1 == 14
        assert len(tries) == 2
        assert first.status().problems == ()


def test_x5_a_generation_that_a_follower_makes_during_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(shared(), "revenue", "share") as (first, second):
        first.push("orders", [order(1, 5)])
        first.commit()
        caught_up(first, second)
        real = Machine.save

        def save(machine: Machine, *args: Any) -> Any:
            monkeypatch.setattr(Machine, "save", real)
            second.push("orders", [order(2, 0)])
            second.commit()
            return real(machine, *args)

        monkeypatch.setattr(Machine, "save", save)
        entry = first.checkpoint()
        assert (entry.time, first.definition.away("failed")) == (3, ["share"])
        assert first._context.checkpoints.read(entry).generation == second.definition.generation


@pytest.mark.parametrize("error", [Conflict(where="shard", why="it was"), OutcomeUnknown(path="s3", why="503")])
def test_x5_a_checkpoint_that_keeps_failing_ends_nothing(error: EvertideError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status says so until one succeeds, and the transactions go on."""

    def failing(*_: Any) -> Any:
        raise error

    with open_pipeline(shared(), settings=replace(QUICK, checkpoint_interval_s=1e-6)) as p:
        with monkeypatch.context() as patched:
            patched.setattr(Checkpointer, "_draft", failing)
            for number in range(3):
                p._pushes.offer_pushed(pushed_of(p, [order(number)]))
                p.run(transactions=1)
            [problem] = p.status().problems
            assert (p.status().state, problem.state, problem.error_code) == ("running", "warning", error.error_code)
            assert error.message in problem.why
        p._pushes.offer_pushed(pushed_of(p, [order(9)]))
        p.run(transactions=1)
        assert p.status().problems == ()
        assert rows_of(p, "counts") == [(4, 0)]


def pushed_of(p: Pipeline, rows: list[Row]) -> PushTransaction:
    pushed = p.transaction()
    pushed.push("orders", rows)
    return pushed


def test_storage_that_is_away_when_the_lead_is_taken_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its duties counted as begun, nobody would ever deliver, compact or compute what failed."""
    with pair(shared()) as (first, second):
        crash(first)

        def away(_: Checkpointer) -> None:
            raise Unavailable(path="meta", why="it is away")

        with monkeypatch.context() as patched:
            patched.setattr(Checkpointer, "refresh", away)
            with pytest.raises(Unavailable):
                second.advance()
        assert not leaders(second)
        second.push("orders", [order(1)])
        second.commit()
        assert leaders(second) == [second]


def replaced(first: Pipeline, second: Pipeline) -> None:
    """The leader was silent for too long: a follower took over, and went on until nothing is left of that time."""
    [known] = [one for name, one in read_registrations(first.storage.meta).items() if name == first._writer.id]
    assert end_registration(first.storage.meta, known, SystemRuntime(), QUICK)
    for number in range(20, 28):
        second.push("orders", [order(number)])
        second.commit()
        second.checkpoint()
    second._leader_tasks.checkpointer.collect()


CALLS: dict[str, Callable[[Pipeline], object]] = {
    "advance": Pipeline.advance,
    "commit": Pipeline.commit,
    "run": Pipeline.run,
    "checkpoint": Pipeline.checkpoint,
    "periodic checkpoint": Pipeline.try_checkpoint,
    "retry": lambda p: p._leader_tasks.backfills._failed(TimeCompacted(where="shard", why="gone", as_of=1, since=9)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_computed", [False, True])
def test_x21_a_process_that_was_fenced_meanwhile_says_so_whatever_it_finds(
    call: str, is_computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs may be forgotten by then: `time_compacted` or `blob_missing` would hide the reason."""

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="meta", why="it is away")

    with pair(shared()) as (first, second):
        for number in range(4):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        first.push("orders", [order(9)])
        if is_computed:  # and waits for its commit
            with monkeypatch.context() as patched:
                patched.setattr("evertide.pipeline.transaction.runner.append_together", away)
                with pytest.raises(Unavailable):
                    first.commit()
        replaced(first, second)
        if call == "retry":
            CALLS[call](first)
        else:
            with pytest.raises(Fenced):
                CALLS[call](first)
        with pytest.raises(Fenced):
            first.advance()
        assert (first.status().problems[0].error_code, second.status().state) == ("fenced", "running")
        assert rows_of(second, "counts") == [(12 + is_computed, 0)]


def register(meta: Meta, **origin: object) -> Registration:
    """A leader that beat just now, of another process that has our host name, and our pid unless it is said."""
    at, now_s = this_process(), SystemRuntime().wall_s()
    ours = Registration("aa", RUNNING, at.host, at.pid, now_s, 20.0, at.boot, at.namespace, at.start_ticks)
    other = msgspec.structs.replace(ours, **origin)
    writes = [
        Write(writer_key("aa"), 0, seal(other)),
        Write(beat_key("aa"), 0, seal(Beat("aa", 1, now_s, 1))),
        Write(LEADER, 0, seal(Leader("aa", now_s, "change"))),
    ]
    assert meta.commit(writes) is None
    return other


def test_x20_a_container_that_is_restarted_with_its_pid_and_its_host_name_goes_on_at_once() -> None:
    """The one before is proven to be gone: the process with that pid started at another time."""
    kept = shared()
    before = register(kept.meta, start_ticks=this_process().start_ticks - 1)
    with open_pipeline(kept, settings=QUICK) as p:
        assert p.leads
        assert before.writer not in read_registrations(kept.meta)


@pytest.mark.parametrize("origin", [{"namespace": "pid:[1]"}, {"boot": "another"}, {"boot": "", "namespace": ""}])
def test_x20_containers_with_one_host_name_do_not_end_each_other(origin: dict[str, object]) -> None:
    """The pid of the other one is free here, which says nothing about it."""
    kept = shared()
    other = register(kept.meta, pid=2**22 - 1, **origin)
    with pytest.raises(Conflict, match="runs it"):
        open_pipeline(kept, settings=QUICK)
    writer = Writer.register(kept.meta, runtime=SystemRuntime(), settings=QUICK)
    assert not Leadership(kept.meta, writer, SystemRuntime(), QUICK, may_take=True).try_acquire()
    assert other.writer in read_registrations(kept.meta)


class Clock(SystemRuntime):
    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def sleep_s(self, seconds: float) -> None:
        self.now_s += seconds


def test_x6_storage_that_was_away_for_all_costs_no_replica_its_place() -> None:
    """After the outage all are silent for longer than they promised: who looks first must not end the others."""
    clock, kept = Clock(), storage()
    settings = replace(QUICK, writer_ttl_s=20.0, beat_interval_s=5.0, retry_limit_s=1e-9)
    first = Writer.register(kept.meta, runtime=clock, settings=settings, label=RUNNING)
    seen = FaultyMeta(kept.meta, Faults(lambda *_: Fault.LOST if is_away else Fault.DONE, lambda *_: Fault.DONE))
    is_away = False
    second = Writer.register(seen, runtime=clock, settings=settings, label=RUNNING)
    leadership = Leadership(seen, second, clock, settings, may_take=True)
    assert Leadership(kept.meta, first, clock, settings, may_take=True).try_acquire()
    is_away = True
    clock.now_s += 25
    with pytest.raises(OutcomeUnknown):
        second.beat()
    is_away = False
    assert not leadership.try_acquire()
    second.beat()
    assert not leadership.try_acquire()
    assert end_silent_writers(kept.meta, runtime=clock, settings=settings, judge=second) == []
    clock.now_s += 11
    second.beat()
    assert leadership.try_acquire(), "it had the time to beat, and did not"


def test_u1_a_transaction_that_waits_below_an_upper_that_a_peer_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower has computed transaction 5 when storage goes away; the leader commits 5 to 10 meanwhile.

    The follower appends nothing of them, is at 10 at once, and commits 11.
    """

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="meta", why="it is away")

    with pair(shared()) as (first, second):
        for number in range(4):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        second.push("orders", [order(5)])
        with monkeypatch.context() as patched:
            patched.setattr("evertide.pipeline.transaction.runner.append_together", away)
            with pytest.raises(Unavailable):
                second.commit()
        assert second.time == 4
        assert first.advance() == 5, "the leader completes what is bound"
        for number in range(6, 11):
            first.push("orders", [order(number)])
            first.commit()
        journal = first._context.journal
        logs = {name: shard.log.read() for name, shard in first._runner.members.all().items()}
        assert (second.advance(), second.time) == (10, 10)
        assert {name: shard.log.read() for name, shard in first._runner.members.all().items()} == logs
        writers = [outcome.writer for time in range(5, 11) if (outcome := journal.committed(time)) is not None]
        assert writers == [first._writer.id] * 6
        second.push("orders", [order(11)])
        assert second.commit() == 11
        caught_up(first, second)
        assert rows_of(first, "counts") == rows_of(second, "counts") == [(11, 0)]


def test_u3_a_cold_replica_catches_up_is_promoted_and_the_first_is_killed() -> None:
    """It starts empty and read-only while the first goes on: no stall, nothing lost, nothing twice."""
    bucket, kept = Bucket(), shared()
    views = (with_sink(VIEWS["revenue"]), VIEWS["counts"])

    def opened(role: Role) -> Pipeline:
        return shop(kept, *views, settings=QUICK, role=role)

    def push(p: Pipeline, number: int) -> None:
        with p.transaction("till", number) as pushed:
            pushed.push("orders", [order(number)])
            pushed.push("notes", [{"text": f"n{number}"}])
        p.take(pushed)

    with into(lake=bucket):
        first = opened(Role.REPLICA)
        for number in range(30):
            push(first, number)
            if number in (10, 20):
                first.checkpoint()
        first.deliver_once()
        second = opened(Role.READ_ONLY)
        for number in range(30, 40):
            push(first, number)
            second.advance()
            if number == 35:
                first.checkpoint()
        first.deliver_once()
        caught_up(second)
        assert second.time == first.time
        push(first, 40)  # which the second has not seen
        promote(kept.meta, second._writer.id, runtime=SystemRuntime(), settings=QUICK)
        crash(first)
        second.advance()
        assert second.leads
        push(second, 40)  # its answer was lost with the process
        push(second, 41)
        second.deliver_once()
        assert rows_of(second, "counts") == [(42, 42)]
        assert sorted(rows_of(second, "notes")) == sorted((f"n{number}",) for number in range(42))
        assert bucket.numbers == sorted(set(bucket.numbers))
        assert is_right(second, bucket)
        assert (second.status().state, second.status().problems) == ("running", ())
        second.close()
