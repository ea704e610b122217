"""Sinks of collections that change: changed and failed views, tables with other columns, sinks that are dropped."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryMeta
from tests.kit.delivering import deliver_once
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.kit.small_engine import SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, VIEWS, Row, storage
from tests.pipeline.sink_kit import (
    Bucket,
    delivery_threads_of,
    into,
    is_right,
    order,
    push_orders,
    shop,
    sink,
    with_sink,
)
from tests.pipeline.test_threads import wait_until

REVENUE = with_sink(VIEWS["revenue"])


def test_a_changed_view_is_delivered_as_new_content_minus_old() -> None:
    """The new content replaces the old in one transaction; later transactions follow as before, and the old
    shard ends."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(1), order(2, "bob", 20)])
        deliver_once(p)
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
        deliver_once(p)
        [status] = p.status().sinks
        assert bucket.numbers == [1]  # this change has no number yet
        assert "is written with the next transaction" in delivery_threads_of(p)._sink_threads["lake"].delivery.waits_for
        assert not p._runner.members.shard(old).log.read().state.finalized
        push_orders(p)
        deliver_once(p)
        assert bucket.numbers == [1, 2]
        assert bucket.got[1][1] == {("ann", 10): -1, ("ann", 20): 1, ("bob", 20): -1, ("bob", 40): 1}
        assert p._runner.members.shard(old).log.read().state.finalized
        push_orders(p, [order(3, "cid", 1)])
        deliver_once(p)
        assert bucket.got[2] == (3, {("cid", 2): 1})
        assert is_right(p, bucket)
        assert status.state == "running"


def test_the_sink_of_a_failed_view_waits_and_continues_when_the_view_recovers() -> None:
    bucket = Bucket()
    with into(lake=bucket), shop(storage(), with_sink(VIEWS["share"])) as p:
        push_orders(p, [order(1), order(2, amount=50)])
        deliver_once(p)
        push_orders(p, [order(3, amount=0)])
        push_orders(p, [order(4, amount=5)])
        deliver_once(p)
        assert bucket.numbers == [1]
        [status] = p.status().sinks
        assert (status.state, status.behind) == ("waiting", 2)
        assert status.problem is not None
        assert "failed" in status.problem.why
        push_orders(p, [order(3, amount=25)])
        deliver_once(p)
        assert bucket.numbers == [1, 4]
        assert is_right(p, bucket, "share")
        assert p.status().sinks[0].state == "running"


def test_the_sink_of_a_table_with_a_new_column_continues() -> None:
    kept, bucket = storage(), Bucket()
    orders = replace(ORDERS, sinks=(sink(),))
    with into(lake=bucket), shop(kept, VIEWS["revenue"], tables=(orders, NOTES)) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
    assert bucket.declaration is not None
    assert bucket.declaration.key == ("id",)
    wider = replace(orders, schema=orders.schema.append(pa.field("note", pa.string())))
    with into(lake=bucket), shop(kept, VIEWS["revenue"], tables=(wider, NOTES)) as p:
        push_orders(p, [{**order(2), "note": "x"}])
        deliver_once(p)
        assert bucket.numbers == [1, 2]
        assert (1, "ann", 10) in bucket.got[0][1]
        assert bucket.got[1][1][2, "ann", 10, "x"] == 1


def test_a_dropped_column_stalls_the_sink() -> None:
    """The target's rows do not fit the new columns, so the sink could not delete them."""
    kept, bucket = storage(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
    narrow = SmallView(
        "revenue", pa.schema([("n", pa.int64())]), ("orders",), lambda tables: [{"n": 1}], 2, REVENUE.sinks
    )
    with into(lake=bucket), shop(kept, narrow) as p:
        push_orders(p)
        deliver_once(p)
        [status] = p.status().sinks
        assert status.state == "stalled"
        assert status.problem is not None
        assert "'customer' of 'revenue' was removed or has another type" in status.problem.why


def test_a_sink_that_is_no_longer_declared_holds_nothing() -> None:
    """A later sink of the same name is a new one: it begins with the whole content, in a place of its own."""
    kept, bucket, second = storage(), Bucket(), Bucket()
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
    with shop(kept, VIEWS["revenue"]) as p:
        assert "sink-lake" not in p._runner.members.open_collection("revenue").holds
        assert p.status().sinks == ()
        push_orders(p, [order(2)])
    with into(lake=second), shop(kept) as p:
        deliver_once(p)
        assert second.numbers == [2]
        assert second.token != bucket.token
        assert is_right(p, second)


def test_the_hold_of_an_ended_sink_is_released_even_if_storage_refused_it_first() -> None:
    """Otherwise the storage would keep all changes since then, for no reader."""
    left = 0

    def choose(_operation: str, key: str) -> Fault:
        nonlocal left
        if left and key.startswith("hold/revenue"):
            left -= 1
            return Fault.REFUSED
        return Fault.DONE

    kept = storage(meta=FaultyMeta(MemoryMeta(SystemRuntime()), Faults(choose, lambda *_: Fault.DONE)))
    with into(lake=Bucket()), shop(kept) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
    left = 1
    with shop(kept, VIEWS["revenue"], settings=replace(SETTINGS, retry_limit_s=1e-9)) as p:
        assert left == 0
        assert p._runner.members.open_collection("revenue").holds == {}


def hold_back(view: SmallView, may_go_on: threading.Event) -> SmallView:
    """The view with another query, which is computed once the event is set."""

    def compute(tables: Mapping[str, list[Row]]) -> list[Row]:
        may_go_on.wait(20)
        return [{"customer": one["customer"], "amount": one["amount"] * 2} for one in tables["orders"]]

    return replace(view, function=compute, version=view.version + 1, query="another query")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_sink_of_a_view_whose_query_changed_waits_and_never_mixes_both_queries(*, is_new: bool) -> None:
    """A new sink begins with the rows of the declared query, an old one gets the difference to them.

    Fails if a new sink is given the stored rows, and if the status calls the old one running.
    """
    kept, bucket, may_go_on = storage(), Bucket(), threading.Event()
    with into(lake=bucket), shop(kept, VIEWS["revenue"] if is_new else REVENUE) as p:
        push_orders(p, [order(1), order(2, "bob", 20)])
        deliver_once(p)
    old, new = {("ann", 10): 1, ("bob", 20): 1}, {("ann", 20): 1, ("bob", 40): 1}
    with into(lake=bucket), shop(kept, hold_back(REVENUE, may_go_on), threads=True) as p:
        wait_until(lambda: p.status().sinks[0].state == "waiting")
        push_orders(p)
        assert [delta for _, delta in bucket.got] == ([] if is_new else [old])
        problem = p.status().sinks[0].problem
        assert problem is not None
        assert ("query of 'revenue' changed" if is_new else "'revenue' is hydrating") in problem.why
        may_go_on.set()
        assert p.wait_until_hydrated(20)
        push_orders(p)
        wait_until(lambda: is_right(p, bucket) and p.status().sinks[0].state == "running")
        assert bucket.got[-1][1] == (new if is_new else {**new, **dict.fromkeys(old, -1)})
