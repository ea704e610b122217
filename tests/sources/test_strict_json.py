"""JSON objects with a repeated name are refused in all inputs, with the name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertide.brokers import EnvelopeKind
from evertide.sources.contract import OP, TableDeclaration
from evertide.sources.kafka.formats import JsonFormat
from evertide.sources.kafka.json_batch import JsonBatch
from evertide.sources.kafka.positions import PartitionRecords
from evertide.sources.kafka.rows import EnvelopeRows
from evertide.sources.values.strict_json import RepeatedName, TooDeep, decode_json
from evertide.sources.values.values import Misfit, parse_value
from tests.sources.kit import faults_in, open_source, put, require_offer, rows_in, table

DECODER = msgspec.json.Decoder()
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('a":\\ {},', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab":\\', max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES, st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]))
def test_json_without_a_repeated_name_decodes_as_usual(value: Any, separators: tuple[str, str]) -> None:
    assert decode_json(DECODER, json.dumps(value, separators=separators).encode()) == value


@given(_VALUES, _VALUES, st.sampled_from(["a", '":', "", ":"]))
def test_a_repeated_name_is_an_error_at_any_depth(first: Any, second: Any, name: str) -> None:
    twice = f"{{{json.dumps(name)}: {json.dumps(first)}, {json.dumps(name)} :{json.dumps(second)}}}"
    for text in (twice, f"[1, {twice}]", f'{{"x": {{"y": {twice}}}}}'):
        with pytest.raises(RepeatedName, match="an object repeats the name"):
            decode_json(DECODER, text.encode())


def test_escaped_and_plain_forms_of_a_name_are_the_same() -> None:
    with pytest.raises(RepeatedName, match="the name 'a'"):
        decode_json(DECODER, b'{"a": 1, "\\u0061": 2}')


def test_a_line_with_a_repeated_name_is_a_fault(tmp_path: Path) -> None:
    put(tmp_path / "in/x.json", '{"id": 1, "name": "a:b"}\n{"id": 2, "name": "a", "name": "b"}\n')
    source = open_source(tmp_path, table(connector="json", path="in", settle_ms="0"))
    offer = require_offer(source)
    assert [row["id"] for row in rows_in(source, offer)] == [1]
    assert [(one.line, one.reason) for one in faults_in(source, offer)] == [(2, "an object repeats the name 'name'")]


def test_a_record_with_a_repeated_name_is_a_fault() -> None:
    """Also where Arrow decodes many records at once."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    declaration = TableDeclaration("t", schema, (), "kafka", {}, "shop.sql, line 1")
    values: list[bytes | None] = [b'{"id": 1, "name": "x"}', b'{"id": 2, "id": 3, "name": "y"}']
    envelope = EnvelopeRows(declaration, EnvelopeKind.APPEND, JsonFormat(schema), None, whole=JsonBatch(declaration))
    found = envelope.rows(PartitionRecords(0, [], [0, 1], [None, None], values), "t-0")
    assert found.rows.drop_columns([OP]).to_pylist() == [{"id": 1, "name": "x"}]
    assert [(one.line, one.reason) for one in found.faults] == [(1, "an object repeats the name 'id'")]


def test_json_with_a_repeated_name_in_a_csv_field_is_refused() -> None:
    with pytest.raises(Misfit, match="the name 'a'"):
        parse_value('{"a": 1, "a": 2}', pa.struct([("a", pa.int32())]))
    with pytest.raises(Misfit, match="not JSON"):
        parse_value("[" * 100_000, pa.list_(pa.int32()))


@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}")])
def test_the_allowed_depth_does_not_depend_on_the_stack(before: str, after: str) -> None:
    def decode(levels: int, frames: int) -> Any:
        if frames:
            return decode(levels, frames - 1)
        return decode_json(DECODER, (before * levels + "1" + after * levels).encode())

    for frames in (0, 300):
        assert decode(500, frames)
        for levels in (501, 800, 100_000):
            with pytest.raises(RecursionError):
                decode(levels, frames)
    with pytest.raises(TooDeep, match="more than 500 levels"):
        decode(501, 0)
