"""Nexmark: events by number, in their proportions; every query returns rows, and both engines agree on them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from evertide.plan.script.statements import TableStatement, ViewStatement, parse_script
from tests.kit.compare import compare
from tests.kit.nexmark import SCHEMAS, WORKLOAD, Nexmark, transactions
from tests.kit.oracle import Reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW = Nexmark(seed=1, events_per_s=100)


def test_the_script_declares_the_tables_and_views(spark: SparkSession) -> None:
    statements = parse_script(spark, WORKLOAD.script())
    tables = {one.name: one for one in statements if isinstance(one, TableStatement)}
    assert {name: table.key for name, table in tables.items()} == {
        "person": ("id",),
        "auction": ("id",),
        "bid": (),
        "side_input": ("key",),
    }
    views = [one.name for one in statements if isinstance(one, ViewStatement) and one.is_materialized]
    assert views == [f"q{number}" for number in range(23) if number != 10] == list(WORKLOAD.queries)


def test_the_schemas_are_as_declared(spark: SparkSession) -> None:
    kinds = {'"long"': pa.int64(), '"string"': pa.string(), '"timestamp"': pa.timestamp("us", "UTC")}
    for statement in parse_script(spark, WORKLOAD.tables):
        assert isinstance(statement, TableStatement)
        fields = [pa.field(column.name, kinds[column.type], column.nullable) for column in statement.columns]
        assert SCHEMAS[statement.name] == pa.schema(fields), statement.name


# Events


def test_one_person_three_auctions_46_bids() -> None:
    events = Nexmark(1).events(0, 50_000)
    assert (events.person.num_rows, events.auction.num_rows, events.bid.num_rows) == (1_000, 3_000, 46_000)
    for name in ("person", "auction", "bid"):
        table: pa.Table = getattr(events, name)
        assert table.schema == SCHEMAS[name]
        table.validate(full=True)


def test_an_event_depends_only_on_seed_and_number() -> None:
    whole = Nexmark(7).events(1_003, 5_000)
    pieces = [Nexmark(7).events(1_003, 77), Nexmark(7).events(1_080, 4_000), Nexmark(7).events(5_080, 923)]
    for name in ("person", "auction", "bid"):
        together = pa.concat_tables([getattr(piece, name) for piece in pieces])
        assert together.combine_chunks() == getattr(whole, name).combine_chunks(), name
    assert Nexmark(8).events(1_003, 5_000).bid != whole.bid


def test_ids_and_times_advance_without_gaps() -> None:
    events = Nexmark(3).events(0, 5_000)
    assert events.person.column("id").to_pylist() == list(range(1000, 1100))
    assert events.auction.column("id").to_pylist() == list(range(1000, 1300))
    times = events.bid.column("dateTime").cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all()
    assert times[-1] - times[0] == pytest.approx(500_000, abs=2_000), "5,000 events at 10,000 per second"
    assert pc.all(pc.greater(events.auction.column("expires"), events.auction.column("dateTime"))).as_py()


def test_some_auctions_bidders_and_sellers_are_hot() -> None:
    events = Nexmark(1).events(1_000_000, 100_000)
    bids = Counter(events.bid.column("auction").to_pylist())
    hot = sum(count for auction, count in bids.items() if auction % 100 == 0)
    assert hot / events.bid.num_rows == pytest.approx(0.5, abs=0.02)
    bidders = Counter(events.bid.column("bidder").to_pylist())
    assert sum(n for bidder, n in bidders.items() if bidder % 100 == 1) / events.bid.num_rows == pytest.approx(
        0.75, 0.02
    )
    sellers = events.auction.column("seller").to_pylist()
    assert sum(seller % 100 == 0 for seller in sellers) / len(sellers) == pytest.approx(0.75, abs=0.02)


def test_bids_are_on_auctions_that_exist_or_begin_soon() -> None:
    events = Nexmark(1).events(0, 100_000)
    last = events.auction.num_rows + 1000 - 1
    auctions = events.bid.column("auction").to_numpy()
    assert auctions.min() >= 1000
    assert last < auctions.max() <= last + 10
    recent = Nexmark(1).events(50_000, 50).bid.column("auction").to_numpy()
    assert recent.min() >= 1000 + 50_000 // 50 * 3 - 200


def test_values_are_spread_as_the_queries_need_them() -> None:
    events = Nexmark(1).events(0, 100_000)
    prices = events.bid.column("price").to_numpy()
    assert prices.min() >= 100
    assert prices.max() < 100_000_000
    assert np.median(prices) == pytest.approx(100_000, rel=0.1), "uniform over the logarithm"
    assert set(events.auction.column("category").to_pylist()) == set(range(10, 15))
    assert set(events.person.column("state").to_pylist()) >= {"OR", "ID", "CA"}
    channels = Counter(events.bid.column("channel").to_pylist())
    assert sum(channels[name] for name in ("Google", "Facebook", "Baidu", "Apple")) / 92_000 == pytest.approx(0.5, 0.05)
    with_id = pc.sum(pc.match_substring(events.bid.column("url"), "&channel_id=")).as_py()
    assert with_id / 92_000 == pytest.approx(0.45, 0.05)


# Transactions


def test_transactions_follow_from_the_seed() -> None:
    first, again, other = (list(transactions(SLOW, seed, count=8)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_transactions_delete_only_existing_rows_and_keep_keys_unique() -> None:
    reference = Reference(None, SCHEMAS)
    changed: Counter[str] = Counter()
    retracted: Counter[str] = Counter()
    for deltas in transactions(SLOW, 1, count=30):
        reference.apply(deltas)
        for name, delta in deltas.items():
            changed[name] += 1
            retracted[name] += pc.any(pc.less(delta.column("__diff"), 0)).as_py()
        for name, key in (("person", "id"), ("auction", "id"), ("side_input", "key")):
            held = reference.rows(name).column(key)
            assert len(held.unique()) == len(held), name
    assert set(changed) == set(SCHEMAS)
    assert min(retracted[name] for name in SCHEMAS) >= 4
    bids = reference.rows("bid")
    assert bids.group_by(bids.schema.names).aggregate([]).num_rows < bids.num_rows, "bids have no key: some occur twice"
    assert bids.column("url").null_count > 0


def test_every_query_gives_rows_and_both_engines_agree(spark: SparkSession) -> None:
    reference = Reference(spark, SCHEMAS)
    for deltas in transactions(SLOW, 1):
        reference.apply(deltas)
    for name, query in WORKLOAD.queries.items():
        by_spark = reference.by_spark(query)
        assert by_spark.num_rows, f"{name} returns no rows"
        compare(by_spark, reference.by_duckdb(WORKLOAD.duckdb[name]), where=name, exact_types=False)


def test_every_query_changes_with_the_transactions() -> None:
    reference = Reference(None, SCHEMAS)
    answers: dict[str, set[str]] = {name: set() for name in WORKLOAD.queries}
    for deltas in transactions(SLOW, 1, count=12):
        reference.apply(deltas)
        for name, query in WORKLOAD.duckdb.items():
            answers[name].add(str(sorted(map(repr, reference.by_duckdb(query).to_pylist()))))
    assert {name: len(seen) for name, seen in answers.items() if len(seen) < 3} == {}
