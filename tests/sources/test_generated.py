"""Generated rows: a function of seed and number, for any split into transactions."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput
from evertide.journal.records import Place
from evertide.sources.contract import OP, Limit, Source
from evertide.sources.generated.nexmark_events import SCHEMAS, Nexmark
from evertide.sources.registry import open_sources
from tests.kit.runtime import ManualRuntime
from tests.sources.kit import KINDS, LIMIT, batches, every_kind, open_source, require_offer, rows_in, table

HERE = Path()


def drain(source: Source, limit: Limit = LIMIT) -> dict[str, pa.Table]:
    """All rows, by table."""
    found: dict[str, list[pa.Table]] = {}
    position = source.start
    while (offer := source.offer(position, limit)) is not None:
        for batch in batches(source, offer):
            found.setdefault(batch.table, []).append(batch.rows)
        position = offer.after
    return {name: pa.concat_tables(tables).combine_chunks() for name, tables in found.items()}


def datagen(schema: pa.Schema, key: tuple[str, ...] = (), **options: str) -> Source:
    return open_source(HERE, table("made", "datagen", schema, key, **{"rows": "100", **options}))


@settings(max_examples=25, deadline=None)
@given(most=st.integers(1, 130), seed=st.integers(0, 5))
def test_rows_do_not_depend_on_the_split_into_transactions(most: int, seed: int) -> None:
    schema = every_kind()
    options = {"seed": str(seed), "updates": "0.3", "deletes": "0.1", "columns.text.nulls": "0.5"}
    whole = drain(datagen(schema, ("number",), **options))["made"]
    batches = drain(datagen(schema, ("number",), **options), Limit(most, 1 << 30))["made"]
    whole.validate(full=True)
    assert whole.num_rows == 100
    assert whole.equals(batches)
    assert not whole.equals(drain(datagen(schema, ("number",), **{**options, "seed": "9"}))["made"])


def test_options_determine_the_values_of_columns() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string()), ("d", pa.decimal128(6, 2))])
    schema = schema.append(pa.field("e", pa.timestamp("us"))).append(pa.field("f", pa.string()))
    options = {
        "rows": "2000",
        "columns.a.min": "-5",
        "columns.A.max": "5",
        "columns.b.distinct": "3",
        "columns.b.length": "4",
        "columns.c.values": "x, y",
        "columns.c.nulls": "0.25",
        "columns.d.min": "1.50",
        "columns.d.max": "1.52",
        "columns.e.kind": "sequence",
        "columns.f.kind": "sequence",
    }
    made = drain(datagen(schema, (), **options))["made"]
    assert set(made.column("a").to_pylist()) == set(range(-5, 6))
    assert len(set(made.column("b").to_pylist())) == 3
    assert {len(text) for text in made.column("b").to_pylist()} == {4}
    counts = Counter(made.column("c").to_pylist())
    assert set(counts) == {"x", "y", None}
    assert counts[None] / 2000 == pytest.approx(0.25, abs=0.04)
    assert set(made.column("d").to_pylist()) == {Decimal("1.50"), Decimal("1.51"), Decimal("1.52")}
    assert made.column("e").to_pylist()[1] == datetime(2026, 1, 1, 0, 0, 1)  # noqa: DTZ001
    assert made.column("f").to_pylist()[:2] == ["f-0", "f-1"]


def test_the_widest_range_does_not_overflow() -> None:
    options = {"columns.a.min": str(-(1 << 63)), "columns.a.max": str((1 << 63) - 1)}
    found = drain(datagen(pa.schema([("a", pa.int64())]), (), **options))["made"].column("a").to_pylist()
    assert min(found) < -(1 << 61)
    assert max(found) > 1 << 61


def test_updates_and_deletes_have_existing_keys() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    made = drain(datagen(schema, ("id",), rows="2000", updates="0.3", deletes="0.1"))["made"]
    rows = made.to_pylist()
    assert all(row["id"] <= at for at, row in enumerate(rows))
    deleted = [row for row in rows if row[OP]]
    changed = [row for at, row in enumerate(rows) if row["id"] < at and not row[OP]]
    assert len(deleted) / 2000 == pytest.approx(0.1, abs=0.03)
    assert len(changed) / 2000 == pytest.approx(0.3, abs=0.04)
    assert {row["name"] for row in deleted} == {None}
    assert None not in {row["name"] for row in changed}


def test_a_rate_follows_the_clock_and_a_pause_is_not_made_up() -> None:
    runtime = ManualRuntime()
    made = table("made", "datagen", pa.schema([("a", pa.int64())]), (), rate="10", rows_per_transaction="1000")
    source = open_source(HERE, made, runtime=runtime)
    assert source.offer('{"next":500}', LIMIT) is None
    runtime.advance_s(1.25)
    assert require_offer(source, '{"next":500}').after == '{"next":512}'
    assert source.offer('{"next":512}', LIMIT) is None
    runtime.advance_s(1)
    assert require_offer(source, '{"next":512}').fragments == (Place('{"first":512,"count":10}'),)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns.x.min": "1"}, "connector 'datagen' has no option 'columns.x.min'"),
        ({"columns.a.min": "ten"}, "'columns.a.min' does not fit the column: 'ten' is not a BIGINT"),
        ({"columns.a.min": "5", "columns.a.max": "4"}, "is greater than"),
        ({"columns.a.nulls": "2"}, "expected a number from 0 to 1"),
        ({"columns.a.kind": "zipf"}, "expected one of 'sequence', 'random'"),
        ({"updates": "0.5"}, "needs a table with a PRIMARY KEY"),
        ({"rows": "many"}, "the option 'rows' is 'many'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        datagen(pa.schema([("a", pa.int64())]), (), **options)
    assert why in refused.value.why
    assert refused.value.where == "shop.sql, line 7, table 'made'"


def test_nulls_in_a_column_that_allows_none_are_refused() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(InvalidInput, match="the column is NOT NULL"):
        datagen(schema, (), **{"columns.a.nulls": "0.1"})


def test_every_type_is_generated() -> None:
    made = drain(datagen(every_kind(), ("number",)))["made"]
    for name in KINDS:
        assert (
            len(
                pc.unique(pc.cast(made.column(name), pa.string()))
                if name not in {"list", "map", "struct", "bytes"}
                else set(map(repr, made.column(name).to_pylist()))
            )
            > 1
        ), name


# Nexmark


def streams(*names: str, **options: str) -> Source:
    tables = [table(name, "nexmark", SCHEMAS[name], ("id",) if name != "bid" else (), **options) for name in names]
    (source,) = open_sources(tables, runtime=ManualRuntime(), base=HERE)
    return source


def test_the_streams_are_one_source_split_at_the_same_event() -> None:
    source = streams("bid", "person", "auction", seed="3", events="1000", events_per_transaction="130")
    assert (source.name, source.tables) == ("nexmark-3", ("bid", "person", "auction"))
    found = drain(source)
    whole = Nexmark(3).events(0, 1000)
    for name in ("person", "auction", "bid"):
        assert found[name].drop_columns([OP]).to_pylist() == getattr(whole, name).to_pylist(), name
    offer = require_offer(source)
    assert offer.rows == 130
    assert Counter(batch.table for batch in batches(source, offer)) == {"bid": 1, "person": 1, "auction": 1}
    assert sum(batch.rows.num_rows for batch in batches(source, offer)) == 130
    assert rows_in(source, offer) == rows_in(streams("bid", "person", "auction", seed="3"), offer)


def test_a_table_may_have_another_name_and_fewer_columns() -> None:
    schema = pa.schema([("PRICE", pa.int64()), ("auction", pa.int64())])
    source = open_source(HERE, table("offers", "nexmark", schema, (), stream="bid", events="50"))
    assert source.name == "nexmark"
    assert (
        drain(source)["offers"].column("PRICE").to_pylist() == Nexmark(0).events(0, 50).bid.column("price").to_pylist()
    )


@pytest.mark.parametrize(
    ("name", "schema", "options", "why"),
    [
        ("trade", SCHEMAS["bid"], {}, "the option 'stream' is missing"),
        ("trade", SCHEMAS["bid"], {"stream": "trade"}, "expected one of 'person', 'auction', 'bid'"),
        ("bid", SCHEMAS["person"], {}, "the stream has no column 'id'; it has auction BIGINT"),
        ("bid", pa.schema([("price", pa.int32())]), {}, "column 'price' is INT, expected BIGINT"),
        ("bid", SCHEMAS["bid"], {"sede": "1"}, "connector 'nexmark' has no option 'sede'"),
    ],
)
def test_a_table_that_is_not_a_stream_is_refused(
    name: str, schema: pa.Schema, options: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_source(HERE, table(name, "nexmark", schema, (), **options))
    assert why in refused.value.why


def test_options_of_one_source_may_not_contradict() -> None:
    tables = [
        table("bid", "nexmark", SCHEMAS["bid"], (), rate="10"),
        table("person", "nexmark", SCHEMAS["person"], ("id",), rate="20"),
    ]
    with pytest.raises(InvalidInput, match="'rate' differs from that of another table"):
        open_sources(tables, runtime=ManualRuntime(), base=HERE)
