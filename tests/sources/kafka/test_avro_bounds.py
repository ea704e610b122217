"""Avro data that need more memory or stack than their bytes justify."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from evertide.sources.kafka.formats import AvroFormat
from evertide.sources.kafka.schema_registry import SchemaRegistry, Unreadable

HEAD = b"\0\0\0\0\1"
NODE = {
    "type": "record",
    "name": "node",
    "fields": [{"name": "id", "type": "long"}, {"name": "next", "type": ["null", "node"]}],
}
EMPTY = {"type": "record", "name": "empty", "fields": [{"name": "none", "type": "null"}]}
BILLIONS = b"\x80\x80\x80\x80\x80\x01\x00"


class Fixed(SchemaRegistry):
    """A registry with one schema, which has the number 1."""

    def __init__(self, schema: Any) -> None:
        super().__init__("http://registry")
        self.requests = 0
        self._schema = schema

    def _fetch(self, path: str) -> Any:
        self.requests += 1
        return {"schema": json.dumps(self._schema)}


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "order", "fields": [{"name": "a", "type": kind}]}


def nested(depth: int) -> bytes:
    """Each level is the number 1, and the branch of the union."""
    return HEAD + b"\x02\x02" * depth + b"\x02\x00"


@pytest.mark.parametrize(
    ("schema", "before"),
    [
        (NODE, b""),
        (record(NODE), b""),
        (record({"type": "array", "items": NODE}), b"\x02"),
        (record({"type": "map", "values": NODE}), b"\x02\x02k"),
    ],
    ids=["record", "field", "array", "map"],
)
def test_deeply_nested_data_are_unreadable(schema: Any, before: bytes) -> None:
    """Without the guard this ends the process: the compiled reader has no limit."""
    with pytest.raises(Unreadable, match="nested too deeply"):
        AvroFormat(Fixed(schema)).decode(HEAD + before + nested(200_000).removeprefix(HEAD))


def test_a_recursive_schema_is_read_as_usual() -> None:
    value = {"id": 1, "next": {"id": 1, "next": {"id": 1, "next": None}}}
    assert AvroFormat(Fixed(NODE)).decode(nested(2)) == value
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(NODE), value)
    assert HEAD + sink.getvalue() == nested(2)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        EMPTY,
        {"type": "fixed", "name": "f", "size": 0},
        {**EMPTY, "fields": [{"name": "e", "type": {**EMPTY, "name": "inner"}}]},
    ],
    ids=repr,
)
def test_an_array_of_items_without_bytes_is_unreadable(items: Any) -> None:
    registry = Fixed(record(["null", {"type": "array", "items": items}]))
    for _ in range(2):
        with pytest.raises(Unreadable, match="items have no bytes"):
            AvroFormat(registry).decode(HEAD + b"\x02" + BILLIONS)
    assert registry.requests == 1


@pytest.mark.parametrize("items", ["long", ["null", "long"], {"type": "fixed", "name": "f", "size": 1}], ids=repr)
def test_an_array_that_announces_more_items_than_it_has_is_unreadable(items: Any) -> None:
    with pytest.raises(Unreadable, match="does not match its schema"):
        AvroFormat(Fixed(record({"type": "array", "items": items}))).decode(HEAD + BILLIONS)
