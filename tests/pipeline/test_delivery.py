"""Delivery: every sink receives each transaction of its collection once, and delays nothing else."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evertide.errors import Conflict, SinkFailed
from evertide.pipeline.sinks.sink_record import read_sinks
from evertide.pipeline.sinks.sink_status import SinkStatus
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.types import SequenceNumber
from tests.kit.delivering import deliver_all, deliver_once
from tests.pipeline.kit import SETTINGS, VIEWS, open_pipeline, rows_of, storage
from tests.pipeline.sink_kit import (
    Bucket,
    delivery_threads_of,
    die,
    into,
    is_right,
    order,
    push_orders,
    shop,
    sink,
    with_sink,
)


def test_j7_transactions_without_changes_open_no_output() -> None:
    """Neither the empty initial content nor a transaction that changes other tables. Without the check the target
    receives empty writes."""
    bucket = Bucket()
    with into(lake=bucket), shop(storage()) as p:
        deliver_once(p)
        assert bucket.got == []
        assert (p.status().sinks[0].state, p.status().sinks[0].behind) == ("running", 0)
        for rows in ([order(1)], [], [order(2, "bob"), order(3, None, None)], [], [order(1)]):
            push_orders(p, rows)
            deliver_once(p)
            assert is_right(p, bucket)
        assert bucket.numbers == [1, 3]  # an update that leaves the last order as it was
        [status] = p.status().sinks
        assert (status.last, status.behind, status.state) == (3, 0, "running")


def test_a_sink_begins_with_the_whole_content_and_continues_with_each_transaction() -> None:
    """The sink is declared when the view has rows: its first write is the whole content, with the number of
    that time."""
    kept, bucket = storage(), Bucket()
    with shop(kept, VIEWS["revenue"]) as p:
        push_orders(p, [order(1), order(2)])
        push_orders(p, [order(2, "bob")])
    with into(lake=bucket), shop(kept) as p:
        deliver_once(p)
        assert bucket.numbers == [2]
        for number in range(3, 7):
            push_orders(p, [order(number, "cid", number)], deletes=[{"id": number - 2}])
        deliver_once(p)
        assert bucket.numbers == [2, 3, 4, 5, 6]
        assert is_right(p, bucket)
    with into(lake=bucket), shop(kept) as p:
        deliver_once(p)
        assert bucket.numbers == [2, 3, 4, 5, 6]
        assert bucket.opened <= 2


def test_a_stalled_sink_is_reported_and_delays_nothing() -> None:
    """The other sink and the transactions continue; the stalled sink catches up, transaction by transaction."""
    broken, fine = Bucket(), Bucket()
    with into(lake=broken, hook=fine), shop(storage(), with_sink(VIEWS["revenue"], sink(), sink("hook"))) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        broken.is_failing = True
        for number in range(2, 5):
            assert push_orders(p, [order(number)]) == number
        deliver_once(p)
        stalled, running = p.status().sinks
        assert (stalled.state, stalled.last, stalled.behind) == ("stalled", 1, 3)
        assert stalled.problem is not None
        assert "does not answer" in stalled.problem.why
        assert stalled.problem.remedy == SinkFailed.remedy
        assert (running.state, running.behind) == ("running", 0)
        assert p.status().state == "running"
        broken.is_failing = False
        deliver_once(p)
        assert broken.got == fine.got
        assert [one.state for one in p.status().sinks] == ["running", "running"]


def test_an_unexpected_error_of_a_connector_is_a_stall_without_secrets() -> None:
    bucket = Bucket()

    def fault() -> None:
        raise KeyError("a password")

    with into(lake=bucket), shop(storage()) as p:
        push_orders(p, [order(1)])
        bucket.before = fault
        deliver_once(p)
        [status] = p.status().sinks
        assert status.problem is not None
        assert "KeyError" in status.problem.why
        assert "a password" not in status.problem.why


def test_c11_no_transaction_is_merged_before_a_sink_receives_it() -> None:
    """The sink is at 4; checkpoints and compaction would merge 5 to 9. Without the hold these would be one
    transaction."""
    bucket = Bucket()
    with into(lake=bucket), shop(storage(), settings=replace(SETTINGS, compaction_fan_in=2)) as p:
        for number in range(1, 5):
            push_orders(p, [order(number, str(number))])
        deliver_once(p)
        bucket.is_failing = True
        for number in range(5, 10):
            push_orders(p, [order(number, str(number))])
            p.checkpoint()
        shard = p._runner.members.open_collection("revenue")
        orders = p._runner.members.open_collection("orders")
        shard.compact(p._writer)
        assert shard.holds["sink-lake"] == 4
        assert shard.since <= 4 < orders.since
        bucket.is_failing = False
        deliver_once(p)
        assert bucket.numbers == [4, 5, 6, 7, 8, 9]
        assert is_right(p, bucket)
        push_orders(p, [order(10)])
        p.checkpoint()
        assert shard.since > 4


def test_threads_deliver_by_themselves(tmp_path: Path) -> None:
    """A regular close records how far the delivery threads are."""
    kept, got = storage(), threading.Event()
    bucket = Bucket(after=got.set)
    with into(lake=bucket), shop(kept, threads=True) as p:
        for number in range(1, 6):
            got.clear()
            push_orders(p, [order(number)])
            assert got.wait(20)
        assert is_right(p, bucket)
        bucket.is_failing = True
        push_orders(p, [order(9)])
        while p.status().sinks[0].state != "stalled":
            SystemRuntime().sleep_s(0.01)
        got.clear()
        bucket.is_failing = False
        assert got.wait(20)
        push_orders(p)
    assert bucket.numbers == [1, 2, 3, 4, 5, 6]
    assert read_sinks(kept.meta, SystemRuntime(), SETTINGS)["lake"].record.position >= 6


def test_t3_until_idle_waits_until_sinks_are_complete() -> None:
    """Otherwise a run with `until_idle` would end before its sinks are complete; it does not wait for a
    stalled sink."""
    slow, broken = Bucket(before=lambda: SystemRuntime().sleep_s(0.1)), Bucket(is_failing=True)
    view = with_sink(VIEWS["revenue"], sink(), sink("hook"))
    with into(lake=slow, hook=broken), shop(storage(), view, threads=True) as p:
        for number in range(1, 4):
            push_orders(p, [order(number)])
        p.run(until_idle=True)
        assert is_right(p, slow)
        assert p.status().flushed == -1
        broken.is_failing = False
        while p.status().flushed < 3:
            SystemRuntime().sleep_s(0.01)
        assert is_right(p, broken)


def test_a_replaced_process_writes_no_more() -> None:
    """Its registration is gone (I16): the process reports that, and its successor delivers."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket):
        old = shop(kept)
        push_orders(old, [order(1)])
        deliver_once(old)
        die(old)
        with shop(kept) as p:
            push_orders(p, [order(2)])
            deliver_once(p)
            deliver_all(delivery_threads_of(old))
            [status] = delivery_threads_of(old).list_statuses(2)
            assert (status.state, bucket.skipped) == ("failed", [2])
            push_orders(p, [order(3)])
            deliver_once(p)
            assert bucket.numbers == [1, 2, 3]
            assert is_right(p, bucket)


def test_no_secret_is_stored_or_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in Meta, blobs, status or the log. The receiver does not exist, so that its errors are reported."""
    monkeypatch.setenv("HOOK", "sesame-open")
    kept = storage()
    hook = sink("hook", "webhook", url="http://127.0.0.1:9/${ENV:HOOK}")
    hook.options["header.authorization"] = "${ENV:HOOK}"  # type: ignore[index]
    with shop(kept, with_sink(VIEWS["revenue"], hook), base=tmp_path) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        assert p.status().sinks[0].state == "stalled"
        assert "***" in str(p.status())
        assert "sesame" not in str(p.status())
        p.checkpoint()
    assert "sesame" not in caplog.text
    assert all(b"sesame" not in head.data for head in kept.meta.heads("").values())
    assert all(b"sesame" not in kept.blob.get(entry.key) for entry in kept.blob.list(""))


def test_a_files_sink_writes_real_files(tmp_path: Path) -> None:
    with shop(storage(), with_sink(VIEWS["revenue"], sink(path="log")), base=tmp_path) as p:
        for number in range(1, 4):
            push_orders(p, [order(number, "ann" if number < 3 else "bob")])
            deliver_once(p)
        assert p.status().sinks == (SinkStatus("lake", "revenue", "files", 3, 0, ComponentState.RUNNING),)
    found = pq.read_table(tmp_path / "log").sort_by([("__time", "ascending"), ("__diff", "ascending")])
    assert [(*each.values(),) for each in found.to_pylist()] == [
        ("ann", 10, 1, 1),
        ("ann", 10, 2, -1),
        ("ann", 20, 2, 1),
        ("bob", 10, 3, 1),
    ]


def test_a_sink_record_that_another_process_wrote_is_a_conflict() -> None:
    bucket = Bucket()
    with into(lake=bucket), shop(storage()) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        delivery = delivery_threads_of(p)._sink_threads["lake"].delivery
        delivery._number = SequenceNumber(delivery._number - 1)
        push_orders(p, [order(2)])
        with pytest.raises(Conflict, match="another process delivers to sink"):
            delivery.step()
    assert rows_of(open_pipeline(storage()), "revenue") == []
