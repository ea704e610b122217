"""Debezium's placeholder for values that it does not have: never stored as a value, for any type and operation."""

from __future__ import annotations

import base64
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.brokers import EnvelopeKind
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.sources.contract import SAME, Rows, TableDeclaration
from evertide.sources.kafka.formats import JsonFormat
from evertide.sources.kafka.options import read_options
from evertide.sources.kafka.positions import PartitionRecords
from evertide.sources.kafka.rows import EnvelopeRows
from evertide.sources.kafka.unavailable import DEFAULT_PLACEHOLDER, Placeholder
from evertide.sources.values.values import Number
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import ScriptedSource, open_pipeline, rows_of, storage, with_sources

P = DEFAULT_PLACEHOLDER
KAFKA = {"brokers": "localhost:9", "topic": "t", "format": "json"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("note", pa.string(), nullable=False),
        pa.field("content", pa.binary()),
        pa.field("words", pa.list_(pa.string())),
        pa.field("numbers", pa.list_(pa.int32())),
        pa.field("facts", pa.map_(pa.string(), pa.string())),
    ]
)
FULL = {"note": "long", "content": "YWJj", "words": ["a", "b"], "numbers": [1, 2], "facts": {"a": "b"}}
GONE = {
    "note": P,
    "content": base64.b64encode(P.encode()).decode(),
    "words": [P],
    "numbers": list(P.encode()),
    "facts": {P: P},
}


def decode(*values: Any, key: tuple[str, ...] = ("id",), kind: str = "debezium", setting: str = P) -> Rows:
    declaration = TableDeclaration("t", SCHEMA, key, "kafka", {}, "shop.sql, line 1")
    key_format = JsonFormat(SCHEMA) if kind == "upsert" else None
    envelope = EnvelopeRows(
        declaration, EnvelopeKind(kind), JsonFormat(SCHEMA), key_format, placeholder=Placeholder(setting)
    )
    rows = [{name.lower(): one for name, one in (value.get("after") or value).items()} for value in values]
    keys = [json.dumps({"id": each["id"]}).encode() for each in rows]
    content = [json.dumps(value).encode() for value in values]
    return envelope.rows(PartitionRecords(0, [], list(range(len(values))), keys, content), "t-0")  # type: ignore[arg-type]


def change(op: str, after: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {}}


def apply_and_read(*batches: Rows) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The rows of the table after these batches, and the reasons of its dead letters."""
    source = ScriptedSource("t", ("t",), list(batches))
    with with_sources(source), open_pipeline(storage(), SmallEngine([DeclaredTable("t", SCHEMA, ("id",))], [])) as p:
        for _ in batches:
            p.commit()
        return rows_of(p, "t"), p.view(ERRORS).to_arrow()["reason"].to_pylist()


def upper(told: dict[str, Any]) -> dict[str, Any]:
    """The same change, from a database that writes names in upper case."""
    rows = {name: {each.upper(): value for each, value in told[name].items()} for name in ("before", "after")}
    return {**told, **rows}


def row(number: int, n: int) -> tuple[Any, ...]:
    return number, n, "long", b"abc", ["a", "b"], [1, 2], [("a", "b")]


def test_unavailable_values_keep_the_value_of_the_keys_row() -> None:
    """In the transaction of the first row, in a later one, and under a key that changes; also if NOT NULL."""
    first = decode(change("c", {"id": 1, "n": 1, **FULL}), change("u", {"id": 1, "n": 2, **GONE}))
    assert apply_and_read(first) == ([row(1, 2)], [])
    assert apply_and_read(first, decode(change("u", {"id": 1, "n": 3, **GONE}))) == ([row(1, 3)], [])
    moved = decode(change("u", {"id": 7, "n": 4, **GONE}, {"id": 1, "n": 2, **GONE}))
    assert apply_and_read(first, moved) == ([row(7, 4)], [])
    assert apply_and_read(first, decode(change("u", {"id": 1, "n": 5, **GONE}, {"id": 1, "n": 1, **FULL}))) == (
        [row(1, 5)],
        [],
    )
    part = decode(change("u", {"id": 1, "n": 5, **GONE}, {"id": 1, "n": 2, **dict.fromkeys(GONE)}))
    assert apply_and_read(first, part) == ([row(1, 5)], []), (
        "an identity that is an index has NULL for all other columns"
    )
    flat = decode({"id": 1, "n": 6, **GONE}, kind="upsert")
    assert apply_and_read(first, flat) == ([row(1, 6)], [])


@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA.remove(6).remove(5).remove(4).remove(3)], ids=["nested", "plain"])
def test_a_key_in_the_value_is_used(schema: pa.Schema) -> None:
    """Plain columns are decoded many records at once."""
    gone = {name: value for name, value in GONE.items() if name in schema.names}
    given = {"unavailable_placeholder": P, "key_format": "none", "envelope": "upsert"}
    declaration = TableDeclaration("t", schema, ("id",), "kafka", {**KAFKA, **given}, "shop.sql, line 1")
    content: list[bytes | None] = [json.dumps({"id": 1, "n": 1, **gone}).encode()]
    found = read_options(declaration, Path()).decoder.rows(PartitionRecords(0, [], [0], [None], content), "t-0")
    assert [json.loads(mark) for mark in found.rows[SAME].to_pylist()] == [[*gone]]


def test_a_key_that_changes_in_columns_of_another_case() -> None:
    first, then = {"ID": 1, "N": 1, **FULL}, {"ID": 2, "N": 1, **FULL}
    found = decode(change("c", {"id": 1, "n": 1, **FULL}), upper(change("u", then, first)))
    assert apply_and_read(found) == ([row(2, 1)], [])


@pytest.mark.parametrize("op", ["c", "r", "u"])
def test_an_unavailable_value_without_an_old_row_is_a_dead_letter_of_the_key(op: str) -> None:
    found, why = apply_and_read(decode(change(op, {"id": 1, "n": 1, **FULL, "note": P})))
    assert found == []
    assert len(why) == 1
    assert why[0].startswith("the upsert leaves column 'note' unchanged, but the table has no earlier row")
    assert apply_and_read(
        decode(change(op, {"id": 1, "n": 1, **FULL, "note": P}), change("u", {"id": 1, "n": 1, **FULL}))
    ) == (
        [row(1, 1)],
        [],
    )


def test_an_omitted_value_in_a_table_without_a_key_is_a_fault() -> None:
    found = decode(change("u", {"id": 1, "n": 1, **GONE}, {"id": 1, "n": 0, **FULL}), key=())
    assert not found.faults, "the old row has all values"
    found = decode(
        change("u", {"id": 1, "n": 1, **GONE}, {"id": 1, "n": 0, **GONE}), change("c", GONE | {"id": 2}), key=()
    )
    assert [fault.reason for fault in found.faults][-1] == (
        "column 'note': Debezium omitted the value, because it did not change; set REPLICA IDENTITY FULL, or declare "
        "the table's key"
    )
    assert found.rows.num_rows == 0


@pytest.mark.parametrize(("setting", "text"), [("n/a", "n/a"), ("hex:6e2f61", "n/a")])
def test_the_placeholder_can_be_configured(setting: str, text: str) -> None:
    found = decode(change("u", {"id": 1, "n": 1, **FULL, "note": text}), setting=setting)
    assert found.rows[SAME].to_pylist() == ['["note"]']
    found = decode(change("u", {"id": 1, "n": 1, **FULL, "note": P}), setting=setting)
    assert found.rows["note"].to_pylist() == [P]


@pytest.mark.parametrize(
    "value",
    [
        P,
        P.encode(),
        base64.b64encode(P.encode()).decode(),
        P.encode().hex(),
        f'{{"{P}":"{P}"}}',
        {P: P},
        [P],
        [None, P.encode()],
        ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        list(P.encode()),
        [float(each) for each in P.encode()],
        [Number(f"{each}.0") for each in P.encode()],
        [Decimal(each).scaleb(-2) for each in P.encode()],
        [base64.b64encode(bytes([each])).decode() for each in P.encode()],
        [{"scale": 0, "value": base64.b64encode(bytes([each])).decode()} for each in P.encode()],
    ],
)
def test_every_form_of_the_placeholder_is_recognised(value: Any) -> None:
    placeholder = pickle.loads(pickle.dumps(Placeholder()))
    assert placeholder.stands_for(value)


@pytest.mark.parametrize(
    "value",
    [None, "", f"{P} ", 5, [], {}, [5], {P: "x"}, {"a": P}, b"", True, [True] * len(P), ["Xw=="] * len(P), [{}]],
)
def test_other_values_are_not_taken_for_the_placeholder(value: Any) -> None:
    assert not Placeholder().stands_for(value)
