"""Delivery: every sink gets each transaction of its collection once, whatever happens to it, and holds up nobody."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.errors import Conflict, InvalidInput, SinkFailed
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.replicas.ownership import Role
from evertide.pipeline.sinks.sink_record import read_sinks
from evertide.pipeline.status.status import SinkStatus, read_status
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from evertide.sinks.contract import Changes
from evertide.store.paths import PIPELINE
from evertide.testing import ManualRuntime
from evertide.testing.small_engine import SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, VIEWS, Row, open_pipeline, rows_of, storage
from tests.pipeline.sink_kit import Bucket, delivery_threads_of, die, into, is_right, order, shop, sink, told, with_sink

REVENUE = with_sink(VIEWS["revenue"])


def test_j7_transactions_without_changes_open_no_output() -> None:
    """Neither the empty beginning nor one that touches other tables. Without the check the target gets empty writes."""
    bucket = Bucket()
    with into(lake=bucket), shop(storage()) as p:
        p.deliver_once()
        assert bucket.got == []
        assert (p.status().sinks[0].state, p.status().sinks[0].behind) == ("running", 0)
        for rows in ([order(1)], [], [order(2, "bob"), order(3, None, None)], [], [order(1)]):
            told(p, rows)
            p.deliver_once()
            assert is_right(p, bucket)
        assert bucket.numbers == [1, 3]  # the last order is as it was
        [status] = p.status().sinks
        assert (status.last, status.behind, status.state) == (3, 0, "running")


def test_a_sink_begins_with_the_whole_content_and_goes_on_with_each_transaction() -> None:
    """Declared later, when there is something already: it is one transaction, with the number of that time."""
    kept, bucket = storage(), Bucket()
    with shop(kept, VIEWS["revenue"]) as p:
        told(p, [order(1), order(2)])
        told(p, [order(2, "bob")])
    with into(lake=bucket), shop(kept) as p:
        p.deliver_once()
        assert bucket.numbers == [2]
        for number in range(3, 7):
            told(p, [order(number, "cid", number)], deletes=[{"id": number - 2}])
        p.deliver_once()
        assert bucket.numbers == [2, 3, 4, 5, 6]
        assert is_right(p, bucket)
    with into(lake=bucket), shop(kept) as p:
        p.deliver_once()
        assert bucket.numbers == [2, 3, 4, 5, 6]
        assert bucket.opened <= 2


def test_a_stalled_sink_is_shown_and_nobody_waits_for_it() -> None:
    """Its twin and the transactions go on; it catches up, transaction by transaction, when it can."""
    broken, fine = Bucket(), Bucket()
    with into(lake=broken, hook=fine), shop(storage(), with_sink(VIEWS["revenue"], sink(), sink("hook"))) as p:
        told(p, [order(1)])
        p.deliver_once()
        broken.is_failing = True
        for number in range(2, 5):
            assert told(p, [order(number)]) == number
        p.deliver_once()
        stalled, running = p.status().sinks
        assert (stalled.state, stalled.last, stalled.behind) == ("stalled", 1, 3)
        assert stalled.problem is not None
        assert "does not answer" in stalled.problem.why
        assert stalled.problem.remedy == SinkFailed.remedy
        assert (running.state, running.behind) == ("running", 0)
        assert p.status().state == "running"
        broken.is_failing = False
        p.deliver_once()
        assert broken.got == fine.got
        assert [one.state for one in p.status().sinks] == ["running", "running"]


def test_a_fault_of_a_connector_is_a_stall_that_says_nothing_secret() -> None:
    bucket = Bucket()

    def fault() -> None:
        raise KeyError("a password")

    with into(lake=bucket), shop(storage()) as p:
        told(p, [order(1)])
        bucket.before = fault
        p.deliver_once()
        [status] = p.status().sinks
        assert status.problem is not None
        assert "KeyError" in status.problem.why
        assert "a password" not in status.problem.why


def test_c11_nothing_is_folded_that_a_sink_has_not_got() -> None:
    """It stands at 4; checkpoints and compaction want to forget 5 to 9. Without the hold they would be one by then."""
    bucket = Bucket()
    with into(lake=bucket), shop(storage(), settings=replace(SETTINGS, compaction_fan_in=2)) as p:
        for number in range(1, 5):
            told(p, [order(number, str(number))])
        p.deliver_once()
        bucket.is_failing = True
        for number in range(5, 10):
            told(p, [order(number, str(number))])
            p.checkpoint()
        shard = p._runner.members.collection("revenue")
        orders = p._runner.members.collection("orders")
        shard.compact(p._writer)
        assert shard.holds["sink-lake"] == 4
        assert shard.since <= 4 < orders.since
        bucket.is_failing = False
        p.deliver_once()
        assert bucket.numbers == [4, 5, 6, 7, 8, 9]
        assert is_right(p, bucket)
        told(p, [order(10)])
        p.checkpoint()
        assert shard.since > 4


def test_a_changed_view_gives_new_minus_old() -> None:
    """The content of another definition, as one transaction; then transactions as before, and the old shard ends."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(1), order(2, "bob", 20)])
        p.deliver_once()
        old = p.definition.views["revenue"].shard
    doubled = SmallView(
        "revenue",
        VIEWS["revenue"].schema,
        ("orders",),
        lambda tables: [{"customer": one["customer"], "amount": one["amount"] * 2} for one in tables["orders"]],
        version=2,
        sinks=REVENUE.sinks,
    )
    with into(lake=bucket), shop(kept, doubled) as p:
        p.deliver_once()
        [status] = p.status().sinks
        assert bucket.numbers == [1]  # there is no number for it yet
        assert "goes with the next transaction" in delivery_threads_of(p)._lanes["lake"].delivery.waits_for
        assert not p._runner.members.shard(old).log.read().state.finalized
        told(p)
        p.deliver_once()
        assert bucket.numbers == [1, 2]
        assert bucket.got[1][1] == {("ann", 10): -1, ("ann", 20): 1, ("bob", 20): -1, ("bob", 40): 1}
        assert p._runner.members.shard(old).log.read().state.finalized
        told(p, [order(3, "cid", 1)])
        p.deliver_once()
        assert bucket.got[2] == (3, {("cid", 2): 1})
        assert is_right(p, bucket)
        assert status.state == "running"


def test_a_view_that_failed_stands_still_and_comes_back() -> None:
    bucket = Bucket()
    with into(lake=bucket), shop(storage(), with_sink(VIEWS["share"])) as p:
        told(p, [order(1), order(2, amount=50)])
        p.deliver_once()
        told(p, [order(3, amount=0)])
        told(p, [order(4, amount=5)])
        p.deliver_once()
        assert bucket.numbers == [1]
        [status] = p.status().sinks
        assert (status.state, status.behind) == ("waiting", 2)
        assert status.problem is not None
        assert "failed" in status.problem.why
        told(p, [order(3, amount=25)])
        p.deliver_once()
        assert bucket.numbers == [1, 4]
        assert is_right(p, bucket, "share")
        assert p.status().sinks[0].state == "running"


def test_a_table_with_a_further_column_goes_on() -> None:
    kept, bucket = storage(), Bucket()
    orders = replace(ORDERS, sinks=(sink(),))
    with into(lake=bucket), shop(kept, VIEWS["revenue"], tables=(orders, NOTES)) as p:
        told(p, [order(1)])
        p.deliver_once()
    assert bucket.declaration is not None
    assert bucket.declaration.key == ("id",)
    wider = replace(orders, schema=orders.schema.append(pa.field("note", pa.string())))
    with into(lake=bucket), shop(kept, VIEWS["revenue"], tables=(wider, NOTES)) as p:
        told(p, [{**order(2), "note": "x"}])
        p.deliver_once()
        assert bucket.numbers == [1, 2]
        assert (1, "ann", 10) in bucket.got[0][1]
        assert bucket.got[1][1][2, "ann", 10, "x"] == 1


def test_a_column_that_is_gone_stalls_the_sink() -> None:
    """Rows that the target has cannot be told in the new columns, so they could not be taken back."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(1)])
        p.deliver_once()
    narrow = SmallView(
        "revenue", pa.schema([("n", pa.int64())]), ("orders",), lambda tables: [{"n": 1}], 2, REVENUE.sinks
    )
    with into(lake=bucket), shop(kept, narrow) as p:
        told(p)
        p.deliver_once()
        [status] = p.status().sinks
        assert status.state == "stalled"
        assert status.problem is not None
        assert "'customer' of 'revenue' was removed or has another type" in status.problem.why


def test_a_sink_that_is_no_longer_declared_keeps_nothing() -> None:
    """And one of its name that comes later is another one: it begins with the whole content, at a place of its own."""
    kept, bucket, second = storage(), Bucket(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(1)])
        p.deliver_once()
    with shop(kept, VIEWS["revenue"]) as p:
        assert "sink-lake" not in p._runner.members.collection("revenue").holds
        assert p.status().sinks == ()
        told(p, [order(2)])
    with into(lake=second), shop(kept) as p:
        p.deliver_once()
        assert second.numbers == [2]
        assert second.token != bucket.token
        assert is_right(p, second)


def test_a_target_that_lost_what_it_had_is_told() -> None:
    """Going on would leave a hole that nobody sees."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(1)])
        p.deliver_once()
        bucket.got.clear()
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(2)])
        p.deliver_once()
        [status] = p.status().sinks
        assert status.problem is not None
        assert "no longer has transaction 1" in status.problem.why
        assert bucket.got == []


def test_a_target_that_forgets_goes_by_our_own_record() -> None:
    """A topic whose records expired, a directory whose files were read: what was recorded counts."""
    kept, bucket = storage(), Bucket(remembers=False)
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(1)])
        p.deliver_once()
        bucket.got.clear()
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(2)])
        p.deliver_once()
        assert bucket.numbers == [2]


def test_a_target_ahead_of_the_pipeline_is_told() -> None:
    """A storage that was brought back from a backup says other things under the same numbers."""
    bucket = Bucket()
    with into(lake=bucket), shop(storage()) as p:
        told(p, [order(1)])
        p.deliver_once()
        delivery_threads_of(p)._lanes["lake"].delivery._close()
        bucket.got.append((7, bucket.got[0][1]))
        told(p, [order(2)])
        p.deliver_once()
        [status] = p.status().sinks
        assert status.problem is not None
        assert "has transaction 7, and the pipeline is at 2" in status.problem.why


def test_a_sink_of_another_collection_needs_another_name() -> None:
    kept = storage()
    with into(lake=Bucket()), shop(kept) as p:
        p.deliver_once()
    with (
        into(lake=Bucket()),
        pytest.raises(InvalidInput, match=r"line 3, sink 'lake'.*the sink of this name writes 'revenue'"),
    ):
        shop(kept, VIEWS["revenue"], with_sink(VIEWS["counts"]))


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """A wrong option, and a place that is taken: there is no pipeline afterwards."""
    kept = storage()
    with pytest.raises(InvalidInput, match="has no option 'paht'"):
        shop(kept, with_sink(VIEWS["revenue"], sink(path="x", paht="x")), base=tmp_path)
    with pytest.raises(SinkFailed, match="does not exist"):
        shop(kept, with_sink(VIEWS["revenue"], sink(path="gone/x")), base=tmp_path)
    assert kept.meta.head(PIPELINE) is None


PIECES = replace(SETTINGS, portion_rows_max=100, inline_bytes_max=64, transaction_rows_max=100)


@pytest.mark.parametrize("key", ["", "customer"])
def test_a_sink_gets_first_content_transactions_and_a_changed_view_in_pieces(key: str) -> None:
    """Memory follows the piece. Without pieces, the largest is the whole content, transaction or difference."""
    kept, bucket = storage(), Bucket()
    options = {"key": key} if key else {}
    first, second = (with_sink(VIEWS["revenue"], sink(**options), version=version) for version in (1, 2))
    second = replace(second, function=lambda tables: VIEWS["revenue"].function(tables)[:40])
    with shop(kept, VIEWS["revenue"], settings=PIECES) as p:
        told(p, [order(number, f"c{number}") for number in range(700)])
    with into(lake=bucket), shop(kept, first, settings=PIECES) as p:
        p.deliver_once()
        assert is_right(p, bucket)
        told(
            p, [order(number, f"c{number}", 20) for number in range(300)], [order(number) for number in range(300, 600)]
        )
        told(p, [order(1, "c1", 30)])
        p.deliver_once()
        assert is_right(p, bucket)
    with into(lake=bucket), shop(kept, second, settings=PIECES) as p:
        told(p, [order(2, "c2", 30)])
        p.deliver_once()
        assert is_right(p, bucket)
    assert [len(delta) > 3 * PIECES.portion_rows_max for _, delta in bucket.got] == [True, True, False, True]
    assert 0 < bucket.rows_max <= 2 * PIECES.portion_rows_max


def test_transactions_that_compaction_merged_come_one_by_one_and_in_pieces() -> None:
    """A batch of many transactions that is too large for memory is spread out by time before it is delivered."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept, settings=PIECES) as p:
        told(p, [order(0)])
        p.deliver_once()
        contents = []
        for number in range(1, 30):
            count = 450 if number == 11 else 12
            told(p, [order(number * 1000 + each, f"c{number}-{each % 400}", number) for each in range(count)])
            contents.append(rows_of(p, "revenue"))
        shard = p._runner.members.collection("revenue")
        shard.compact(p._writer)
        assert len(shard.log.read().state.batches) < 29
        p.deliver_once()
        assert is_right(p, bucket)
        assert bucket.numbers == [1, *range(2, 31)]
        assert bucket.rows_max <= 2 * PIECES.portion_rows_max


def test_a_first_content_that_is_written_again_is_cut_in_the_same_way() -> None:
    """A receiver drops requests by their number: if the second try were another transaction, or cut otherwise, it would
    drop rows that it never got, or get rows twice."""
    kept = storage()
    seen: list[tuple[int, list[list[Row]]]] = []

    class Receiver:
        name, remembers = "lake", False

        def last(self) -> None:
            return None

        def write(self, time: int, changes: Changes) -> None:
            seen.append((time, [piece.to_pylist() for piece in changes]))
            if len(seen) < 3:
                raise SinkFailed(sink="lake", where="hook", why="the answer was lost")

        def close(self) -> None:
            pass

    bucket = Bucket()
    bucket.open = lambda _token: Receiver()  # type: ignore[method-assign, assignment, return-value]
    with into(lake=bucket), shop(kept, settings=PIECES) as p:
        told(p, [order(number, f"c{number}") for number in range(500)])
        p.deliver_once()
        told(p, [order(number, f"d{number}") for number in range(400)])
        p.deliver_once()
    with into(lake=bucket), shop(kept, settings=replace(PIECES, portion_rows_max=10_000)) as p:
        p.deliver_once()
        assert p.status().sinks[0].behind == 0
    assert seen[0][0] == seen[1][0] == seen[2][0]
    assert len(seen[0][1]) > 3
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("numbers_requests", [False, True])
def test_a_first_content_whose_pieces_do_not_fit_into_memory_is_cut_into_more(*, numbers_requests: bool) -> None:
    """Without halving, the sink stalls for ever. A target that keeps single requests must get the same ones again."""
    sizes: list[list[int]] = []

    class Small:
        name, remembers = "lake", False

        def last(self) -> None:
            return None

        def write(self, time: int, changes: Changes) -> None:
            sizes.append([])
            for piece in changes:
                sizes[-1].append(piece.num_rows)
                if piece.num_rows > 60:
                    raise MemoryError
                if piece.num_rows > 40:
                    raise SinkFailed(sink="lake", where="table", why="no memory") from MemoryError()

        def close(self) -> None:
            pass

    bucket = Bucket(numbers_requests=numbers_requests)
    bucket.open = lambda _token: Small()  # type: ignore[method-assign, assignment, return-value]
    with into(lake=bucket), shop(storage(), settings=replace(PIECES, portion_rows_max=200)) as p:
        told(p, [order(number, f"c{number}") for number in range(500)])
        for _ in range(8):
            p.deliver_once()
        [status] = p.status().sinks
        assert (status.state, status.behind == 0) == (("stalled", False) if numbers_requests else ("running", True))
    if numbers_requests:
        assert all(one == sizes[0] for one in sizes)
    else:
        assert sum(sizes[-1]) == 500
        assert max(sizes[-1]) <= 40


def test_a_late_sink_is_told_with_how_long() -> None:
    runtime, bucket = ManualRuntime(), Bucket()
    with into(lake=bucket), shop(storage(), runtime=runtime) as p:
        told(p, [order(1)])
        assert p.status().sinks[0].state == "running"
        runtime.advance_s(61)
        [status] = p.status().sinks
        assert (status.state, status.behind) == ("lagging", 2)
        assert status.problem is not None
        assert status.problem.since_s == pytest.approx(runtime.wall_s() - 61)
        p.deliver_once()
        assert p.status().sinks[0].state == "running"


def deliver_one(p: Pipeline, patch: pytest.MonkeyPatch) -> None:
    """A target that takes one transaction in the time in which others commit several."""
    patch.setattr("evertide.shard.state.ShardState.reach", lambda state, lower, _rows: min(lower + 1, state.upper))
    for lane in delivery_threads_of(p)._lanes.values():
        delivery_threads_of(p)._step(lane)


def test_a_sink_that_moves_but_falls_behind_is_lagging_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of the oldest transaction counts: a measure that starts again with each delivery never fires."""
    runtime, bucket, kept = ManualRuntime(), Bucket(), storage()
    with into(lake=bucket), shop(kept, runtime=runtime) as p:
        states = []
        for minute in range(10):
            for number in range(4):
                told(p, [order(minute * 4 + number)])
            runtime.advance_s(30)
            deliver_one(p, monkeypatch)
            states.append(p.status().sinks[0].state)
        [status] = p.status().sinks
        assert states[0] == "running"
        assert states[-1] == "lagging"
        assert status.problem is not None
        assert f"{status.behind} transactions behind" in status.problem.why
        since_s = status.problem.since_s
        assert (
            since_s == p._context.journal.read(delivery_threads_of(p)._lanes["lake"].delivery.position + 1).bound_at_s
        )
        monkeypatch.undo()
    with into(lake=bucket), shop(kept, runtime=runtime) as p:  # the age is durable: a restart does not make it young
        problem = p.status().sinks[0].problem
        assert problem is not None
        assert (problem.state, problem.since_s) == ("lagging", since_s)
        p.deliver_once()
        assert (p.status().sinks[0].state, p.status().sinks[0].problem) == ("running", None)


def test_a_sink_is_lagging_by_its_backlog_however_young_that_is() -> None:
    bucket = Bucket()
    with into(lake=bucket), shop(storage(), settings=replace(SETTINGS, sink_lag_transactions=3)) as p:
        told(p, [order(0)])
        p.deliver_once()
        for number in range(1, 4):
            told(p, [order(number)])
        assert p.status().sinks[0].state == "running"
        told(p, [order(4)])
        assert (p.status().sinks[0].state, p.status().sinks[0].behind) == ("lagging", 4)


def test_the_age_of_a_transaction_that_the_journal_has_forgotten_is_that_of_the_oldest_kept() -> None:
    runtime, bucket = ManualRuntime(), Bucket()
    with into(lake=bucket), shop(storage(), runtime=runtime) as p:
        told(p, [order(0)])
        p.deliver_once()
        for number in range(1, 6):
            told(p, [order(number)])
            p.checkpoint()
            runtime.advance_s(100)
        journal = p._context.journal
        oldest = journal.describe()[0]
        assert oldest.time > bucket.numbers[-1] + 1
        [status] = p.status().sinks
        assert status.state == "lagging"
        assert status.problem is not None
        assert status.problem.since_s == oldest.bound_at_s


def test_a_follower_reports_the_sinks_of_the_leader() -> None:
    """It would say that everything is delivered, while the leader says that its sink stalls."""
    kept, bucket = storage(), Bucket()
    settings = replace(SETTINGS, lead_interval_s=1e-6)
    with (
        into(lake=bucket),
        shop(kept, settings=settings, role=Role.REPLICA) as leader,
        shop(kept, settings=settings, role=Role.REPLICA) as follower,
    ):
        bucket.is_failing = True
        for number in range(3):
            told(leader, [order(number)])
        leader.deliver_once()
        while follower.advance() is not None:
            pass
        mine, seen = leader.status(), follower.status()
        assert [(one.name, one.state, one.behind) for one in seen.sinks] == [("lake", "stalled", 4)]
        assert seen.sinks == mine.sinks
        assert seen.flushed == mine.flushed == -1


def test_t3_others_ask_the_storage_alone() -> None:
    """How far it durably is, and what its process last reported of it."""
    kept, bucket = storage(), Bucket()
    shards = Shards(kept.blob, kept.meta, runtime=SystemRuntime(), settings=SETTINGS)
    with into(lake=bucket), shop(kept) as p:
        told(p, [order(1)])
        p.deliver_once()
        bucket.is_failing = True
        told(p, [order(2)])
        p.deliver_once()
        found = read_status(kept, shards, p._context.journal, p._context.checkpoints)
        assert found.sinks == p.status().sinks
        assert (found.sinks[0].state, found.sinks[0].behind) == ("stalled", 1)
        assert (found.time, found.flushed) == (2, 1)
    with shop(kept, VIEWS["revenue"]) as p:
        assert read_status(kept, shards, p._context.journal, p._context.checkpoints).sinks == ()


def test_threads_deliver_by_themselves(tmp_path: Path) -> None:
    """And an orderly end records how far they are."""
    kept, got = storage(), threading.Event()
    bucket = Bucket(after=got.set)
    with into(lake=bucket), shop(kept, threads=True) as p:
        for number in range(1, 6):
            got.clear()
            told(p, [order(number)])
            assert got.wait(20)
        assert is_right(p, bucket)
        bucket.is_failing = True
        told(p, [order(9)])
        while p.status().sinks[0].state != "stalled":
            SystemRuntime().sleep_s(0.01)
        got.clear()
        bucket.is_failing = False
        assert got.wait(20)
        told(p)
    assert bucket.numbers == [1, 2, 3, 4, 5, 6]
    assert read_sinks(kept.meta, SystemRuntime(), SETTINGS)["lake"].record.position >= 6


def test_t3_until_idle_is_until_sinks_have_all() -> None:
    """A run that is to end by itself would otherwise leave them behind; one that stalls is not waited for."""
    slow, broken = Bucket(before=lambda: SystemRuntime().sleep_s(0.1)), Bucket(is_failing=True)
    view = with_sink(VIEWS["revenue"], sink(), sink("hook"))
    with into(lake=slow, hook=broken), shop(storage(), view, threads=True) as p:
        for number in range(1, 4):
            told(p, [order(number)])
        p.run(until_idle=True)
        assert is_right(p, slow)
        assert p.status().flushed == -1
        broken.is_failing = False
        while p.status().flushed < 3:
            SystemRuntime().sleep_s(0.01)
        assert is_right(p, broken)


def test_one_that_was_replaced_writes_no_more() -> None:
    """Its registration is gone (I16): it says so, and the one that took over delivers."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket):
        old = shop(kept)
        told(old, [order(1)])
        old.deliver_once()
        die(old)
        with shop(kept) as p:
            told(p, [order(2)])
            p.deliver_once()
            delivery_threads_of(old).once()
            [status] = delivery_threads_of(old).statuses(2)
            assert (status.state, bucket.skipped) == ("failed", [2])
            told(p, [order(3)])
            p.deliver_once()
            assert bucket.numbers == [1, 2, 3]
            assert is_right(p, bucket)


def test_secrets_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in Meta, nor in blobs, status, or the log; the receiver is not there, so that all of it is told."""
    monkeypatch.setenv("HOOK", "sesame-open")
    kept = storage()
    hook = sink("hook", "webhook", url="http://127.0.0.1:9/${ENV:HOOK}")
    hook.options["header.authorization"] = "${ENV:HOOK}"  # type: ignore[index]
    with shop(kept, with_sink(VIEWS["revenue"], hook), base=tmp_path) as p:
        told(p, [order(1)])
        p.deliver_once()
        assert p.status().sinks[0].state == "stalled"
        assert "***" in str(p.status())
        assert "sesame" not in str(p.status())
        p.checkpoint()
    assert "sesame" not in caplog.text
    assert all(b"sesame" not in head.data for head in kept.meta.heads("").values())
    assert all(b"sesame" not in kept.blob.get(entry.key) for entry in kept.blob.list(""))


def test_real_files(tmp_path: Path) -> None:
    with shop(storage(), with_sink(VIEWS["revenue"], sink(path="log")), base=tmp_path) as p:
        for number in range(1, 4):
            told(p, [order(number, "ann" if number < 3 else "bob")])
            p.deliver_once()
        assert p.status().sinks == (SinkStatus("lake", "revenue", "files", 3, 0, "running"),)
    found = pq.read_table(tmp_path / "log").sort_by([("__time", "ascending"), ("__diff", "ascending")])
    assert [(*each.values(),) for each in found.to_pylist()] == [
        ("ann", 10, 1, 1),
        ("ann", 10, 2, -1),
        ("ann", 20, 2, 1),
        ("bob", 10, 3, 1),
    ]


def test_a_record_that_somebody_else_wrote_is_a_conflict() -> None:
    bucket = Bucket()
    with into(lake=bucket), shop(storage()) as p:
        told(p, [order(1)])
        p.deliver_once()
        delivery = delivery_threads_of(p)._lanes["lake"].delivery
        delivery._number -= 1
        told(p, [order(2)])
        with pytest.raises(Conflict, match="another process delivers"):
            delivery.step()
    assert rows_of(open_pipeline(storage()), "revenue") == []
