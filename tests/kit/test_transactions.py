"""Random transactions: from a seed, without deletions of missing rows, and with every kind of change."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from tests.kit.oracle import Content
from tests.kit.transactions import KINDS, pool_of, random_transactions

SCHEMAS = {
    "keyed": pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), pa.field("s", pa.string(), nullable=False)]
    ),
    "loose": pa.schema([("a", pa.int32()), ("b", pa.string())]),
}
KEYS = {"keyed": ["id"]}


def as_text(seed: int) -> str:
    """As text, as NaN is not equal to itself."""
    transactions = random_transactions(SCHEMAS, seed, keys=KEYS)
    return repr([{name: delta.to_pylist() for name, delta in deltas.items()} for deltas in transactions])


def test_the_same_seed_is_the_same_transactions() -> None:
    assert as_text(7) == as_text(7)
    assert as_text(7) != as_text(8)


@pytest.mark.parametrize("seed", range(5))
def test_transactions_delete_only_existing_rows_and_keep_keys_unique(seed: int) -> None:
    contents = {name: Content(schema, name) for name, schema in SCHEMAS.items()}
    for deltas in random_transactions(SCHEMAS, seed, keys=KEYS, count=40):
        for name, delta in deltas.items():
            assert delta.schema.names == [*SCHEMAS[name].names, "__diff"]
            contents[name].apply(delta)
        ids = contents["keyed"].rows.column("id").to_pylist()
        assert len(ids) == len(set(ids)), "a key occurs twice"
        assert contents["keyed"].rows.column("s").null_count == 0


def test_every_kind_of_change_occurs() -> None:
    transactions = list(random_transactions(SCHEMAS, 1, keys=KEYS, count=2 * len(KINDS) + 1))
    rows = [row for deltas in transactions for delta in deltas.values() for row in delta.to_pylist()]
    floats = [row["x"] for row in rows if row.get("x") is not None]
    assert any(map(math.isnan, floats))
    assert math.inf in floats
    assert any(x == 0 and math.copysign(1, x) < 0 for x in floats)
    assert any(row.get("x", 0) is None for row in rows)
    assert {} in transactions
    sizes = sorted(sum(delta.num_rows for delta in deltas.values()) for deltas in transactions)
    assert sizes[-1] > 5 * sizes[len(sizes) // 2], "one transaction is huge"
    loose = Content(SCHEMAS["loose"])
    most = 0
    for deltas in transactions:
        loose.apply(deltas.get("loose", loose.rows.schema.append(pa.field("__diff", pa.int64())).empty_table()))
        held = [tuple(row.items()) for row in loose.rows.to_pylist()]
        most = max([most, *(held.count(row) for row in held)])
    assert most > 1, "duplicates"


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.decimal128(5, 2), pa.decimal128(2, 2), pa.string()),
        *(pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.list_(pa.int32())),
        *(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), pa.map_(pa.string(), pa.float64())),
    ],
    ids=str,
)
def test_every_type_has_a_pool(kind: Any) -> None:
    pool = pool_of(kind)
    assert len(pool) > 1
    assert pa.array(pool, kind).null_count == 0


def test_pools_can_be_passed_and_are_required_for_types_without_one() -> None:
    schemas = {"t": pa.schema([pa.field("v", pa.duration("us"), nullable=False)])}
    with pytest.raises(InvalidInput, match="give a pool"):
        list(random_transactions(schemas, 1))
    for pools in ({"v": [5]}, {"t.v": [5]}):
        [first, *_] = random_transactions(schemas, 1, pools=pools)
        assert set(first["t"].column("v").cast(pa.int64()).to_pylist()) == {5}
