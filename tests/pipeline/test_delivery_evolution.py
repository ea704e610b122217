"""Sinks of collections that change: changed and failed views, tables with other columns, sinks that are dropped."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tests.kit.delivering import deliver_once
from tests.kit.small_engine import SmallView
from tests.pipeline.kit import NOTES, ORDERS, VIEWS, storage
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
