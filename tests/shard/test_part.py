"""Parts: decoding returns the same rows, errors name the path, statistics never skip a matching row."""

from __future__ import annotations

import math
import operator
import os
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from evertide.errors import BlobDamaged, InvalidInput, UnsupportedFormat
from evertide.rows.changes import DIFF, TIME, check_changes, make_changes_schema
from evertide.rows.digest import ZERO, compute_digest, to_hex
from evertide.settings import Settings
from evertide.shard.parts.part import Part, Predicate, Range, decode_part, encode_parts, may_match, verify_rows
from evertide.shard.parts.statistics import compute_range
from tests.kit.arrow import canonical_rows, reencoded, tables

EXAMPLES = examples(max_examples=50, deadline=None)
GOLDEN = Path(__file__).parent.parent / "golden"
PATH = "parts/orders/w-1.parquet"
INLINE, BLOB = Settings(), Settings(inline_bytes_max=1)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def with_times(table: Any, times: list[int] | None = None, diffs: list[int] | None = None) -> Any:
    rows = table.num_rows
    extra = [pa.array(times or range(rows), pa.int64()), pa.array(diffs or [1] * rows, pa.int64())]
    return pa.Table.from_arrays([*table.columns, *extra], schema=make_changes_schema(table.schema))


def sample(rows: int = 100) -> Any:
    names = [None if i % 5 == 0 else f"name {i}" for i in range(rows)]
    return with_times(pa.Table.from_arrays([pa.array(range(rows)), pa.array(names)], schema=SCHEMA))


def one(table: Any, settings: Settings = BLOB) -> tuple[Part, bytes]:
    [(part, content)] = encode_parts(table, settings=settings)
    return part, content


@pytest.mark.parametrize("settings", [INLINE, BLOB], ids=["inline", "blob"])
@EXAMPLES
@given(data=st.data())
def test_every_type_is_decoded_exactly(settings: Settings, data: st.DataObject) -> None:
    """For any physical form of the rows, arbitrary values under NULL included."""
    table = data.draw(tables())
    coded = data.draw(reencoded(table))
    given_rows = coded.append_column(TIME, pa.array(range(len(table)), pa.int64())).append_column(
        DIFF, pa.array([1] * len(table), pa.int64())
    )
    changes = check_changes(given_rows, table.schema, 0, 100, "x")
    parts = encode_parts(changes, settings=settings)
    assert len(parts) == min(len(table), 1)
    for part, content in parts:
        found = decode_part(
            msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=Part), content, table.schema, PATH
        )
        found.validate(full=True)
        assert found.schema.equals(changes.schema, check_metadata=True)
        types = zip(found.columns, found.schema, strict=True)
        assert all(column.type.equals(field.type, check_metadata=True) for column, field in types)
        assert canonical_rows(found) == canonical_rows(with_times(table))
        verify_rows(part, found, PATH)
        assert bool(part.inline) == (settings is INLINE)


def test_a_part_describes_its_rows() -> None:
    table = with_times(sample(3).drop_columns([TIME, DIFF]), [7, 5, 6], [2**62, -1, 2**62])
    part, content = one(table)
    assert (part.rows, part.bytes, part.count, part.retractions) == (3, len(content), 2**63 - 1, 1)
    assert (part.time_min, part.time_max, part.key, part.inline) == (5, 7, "", b"")
    assert part.checksum == xxhash.xxh3_128_hexdigest(content)
    assert part.digest == to_hex(compute_digest(table.drop_columns([TIME, DIFF]), np.array([2**62, -1, 2**62])))
    assert part.ranges == {"id": Range(0, 2, 0), "name": Range("name 1", "name 2", 1)}
    assert (part.slice_index, part.slice_count) == (0, 1)


def test_counts_do_not_wrap_around() -> None:
    part, _ = one(with_times(SAMPLE.slice(0, 3), diffs=[2**62, 2**62, 2**62]))
    assert part.count == 3 * 2**62
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=Part) == part


def test_a_null_over_elements_is_stored_without_them() -> None:
    offsets, valid = pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"\x01")
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [valid, offsets], children=[pa.array([1, 2, 3])])
    table = pa.table({"l": lists, "s": pa.StructArray.from_arrays([lists], ["inner"])})
    for settings in (INLINE, BLOB):
        part, content = one(with_times(table), settings)
        found = decode_part(part, content, table.schema, PATH)
        assert found.column("l").to_pylist() == [[1], None]
        assert found.column("s").to_pylist() == [{"inner": [1]}, {"inner": None}]


def test_lists_of_a_fixed_size_inside_null_come_back() -> None:
    pair = pa.list_(pa.field("element", pa.int64(), nullable=False), 2)
    kind = pa.struct([pa.field("pair", pair, nullable=False)])
    table = pa.table({"s": pa.array([None, {"pair": [1, 2]}, None], kind), "p": pa.array([None, [3, 4], [5, 6]], pair)})
    for settings in (INLINE, BLOB):
        part, content = one(with_times(table), settings)
        found = decode_part(part, content, table.schema, PATH)
        assert found.to_pylist() == with_times(table).to_pylist()
        assert found.schema == with_times(table).schema


def test_large_batches_are_split_and_small_ones_inline() -> None:
    settings = Settings(part_rows_max=40, row_group_rows=16, inline_bytes_max=1)
    table = sample()
    encoded = encode_parts(table, settings=settings)
    assert [part.rows for part, _ in encoded] == [40, 40, 20]
    assert all(not part.inline for part, _ in encoded)
    assert pq.ParquetFile(pa.BufferReader(encoded[0][1])).num_row_groups == 3
    for use_threads in (True, False):
        decoded = [decode_part(part, data, SCHEMA, PATH, use_threads=use_threads) for part, data in encoded]
        assert pa.concat_tables(decoded) == table
    part, content = one(table, INLINE)
    assert part.inline == content
    assert part.bytes == len(content) <= INLINE.inline_bytes_max
    assert encode_parts(table.slice(0, 0), settings=INLINE) == []
    assert all(not part.inline for part, _ in encode_parts(table, settings=Settings(part_rows_max=40)))


@pytest.mark.parametrize("rows", [10, 300, 1000, 3000])
def test_a_batch_is_inline_if_it_fits(rows: int) -> None:
    """Raw, then lz4, then zstd, then a blob: never larger than the limit, and the rows are the same."""
    table = sample(rows)
    part, content = one(table, Settings(inline_bytes_max=8192))
    assert not part.inline or len(content) <= 8192
    assert bool(part.inline) == (rows <= 1000)
    assert decode_part(part, content, SCHEMA, PATH) == table


@pytest.mark.parametrize("settings", [INLINE, BLOB], ids=["inline", "blob"])
def test_only_the_requested_columns_are_decoded(settings: Settings) -> None:
    part, content = one(sample(), settings)
    assert decode_part(part, content, SCHEMA, PATH, columns=["name"]) == sample().select(["name", TIME, DIFF])
    assert decode_part(part, content, SCHEMA, PATH, columns=[]) == sample().select([TIME, DIFF])


@pytest.mark.parametrize("settings", [INLINE, BLOB], ids=["inline", "blob"])
def test_damage_is_detected_before_anything_is_decoded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    part, content = one(sample(), settings)
    for reader in ("_read_parquet", "_read_inline"):
        monkeypatch.setattr(f"evertide.shard.parts.part.{reader}", lambda *_: pytest.fail("decoded"))
    for cut in (0, 1, len(content) - 1):
        with pytest.raises(BlobDamaged, match=f"{PATH}.*length.*expected {part.bytes}, found {cut}"):
            decode_part(part, content[:cut], SCHEMA, PATH)
    for at in range(0, len(content), 97):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(BlobDamaged, match=f"{PATH}.*checksum.*{part.checksum}"):
            decode_part(part, damaged, SCHEMA, PATH)


@pytest.mark.parametrize("settings", [INLINE, BLOB], ids=["inline", "blob"])
def test_a_lack_of_memory_is_no_damage(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    part, content = one(sample(), settings)

    def fail(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 16000000 failed")

    for reader in ("_read_parquet", "_read_inline"):
        monkeypatch.setattr(f"evertide.shard.parts.part.{reader}", fail)
    with pytest.raises(MemoryError):
        decode_part(part, content, SCHEMA, PATH)


def with_content(part: Part, content: bytes) -> Part:
    return msgspec.structs.replace(part, bytes=len(content), checksum=xxhash.xxh3_128_hexdigest(content))


@pytest.mark.parametrize("settings", [INLINE, BLOB], ids=["inline", "blob"])
def test_other_formats_and_contents_are_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    part, content = one(sample(), settings)
    with pytest.raises(
        BlobDamaged, match=f"{PATH}.*columns differ(?s:.*)expected id: int64(?s:.*)found id: int64 not null"
    ):
        decode_part(part, content, pa.schema([("id", pa.int64()), ("name", pa.string())]), PATH)
    with pytest.raises(BlobDamaged, match=f"{PATH}.*row count differs .expected 99, found 100"):
        decode_part(msgspec.structs.replace(part, rows=99), content, SCHEMA, PATH)
    for garbage in (b"PAR1" + content[10:], b"no such thing"):
        with pytest.raises(BlobDamaged, match=f"{PATH}.*cannot be read"):
            decode_part(with_content(part, garbage), garbage, SCHEMA, PATH)
    for version, number in ((b"2", 2), (b"?", 0)):
        with monkeypatch.context() as patch:
            patch.setattr("evertide.shard.parts.part._METADATA", {b"evertide.format": version})
            newer, newer_content = one(sample(), settings)
        with pytest.raises(
            UnsupportedFormat, match=f"{PATH}.*format version {number}; this version of Evertide reads 1"
        ):
            decode_part(newer, newer_content, SCHEMA, PATH)


def test_rows_that_differ_from_the_state_are_detected() -> None:
    part, _ = one(sample())
    verify_rows(part, sample(), PATH)
    other = sample().set_column(0, SCHEMA.field("id"), pa.array([*range(99), 100]))
    for table, name in ((sample(99), "rows"), (other, "digest"), (with_times(SAMPLE, [3] * 100), "time_min")):
        with pytest.raises(BlobDamaged, match=f"{PATH}.*{name}"):
            verify_rows(part, table, PATH)
    with pytest.raises(BlobDamaged, match=f"digest of its rows.*expected {ZERO}"):
        verify_rows(msgspec.structs.replace(part, digest=ZERO), sample(), PATH)


SAMPLE = sample().drop_columns([TIME, DIFF])

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def order_key(value: Any) -> Any:
    """A key that sorts Python values as SQL does: NaN is greatest and equals itself, -0.0 equals 0.0."""
    if isinstance(value, float | np.floating):
        return (1, 0.0) if math.isnan(value) else (0, float(value))
    return value


def comparable_values(column: Any) -> list[Any]:
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.combine_chunks().view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: list[Any] = column.to_pylist()
    return [float(value) if isinstance(value, np.floating) else value for value in values]


def satisfies(value: Any, op: str, wanted: Any) -> bool:
    if op in ("is null", "is not null"):
        return (value is None) == (op == "is null")
    return value is not None and wanted is not None and COMPARE[op](order_key(value), order_key(wanted))


@examples(max_examples=150, deadline=None)
@given(st.data())
def test_a_part_with_a_matching_row_is_never_skipped(data: st.DataObject) -> None:
    table = data.draw(tables(nested=False, rows_max=6))
    column = data.draw(st.sampled_from(table.schema.names))
    values = comparable_values(table.column(column))
    others = comparable_values(data.draw(tables(pa.schema([table.schema.field(column)]))).column(column))
    wanted = data.draw(st.sampled_from([*values, *others, None, 0.5, 1, "a", b"a", True, Decimal(1), float("nan")]))
    op = data.draw(st.sampled_from([*COMPARE, "is null", "is not null"]))
    parts = encode_parts(with_times(table), settings=INLINE)
    assert len(parts) == min(len(table), 1)
    for part, _ in parts:
        try:
            matches = any(satisfies(value, op, wanted) for value in values)
        except TypeError:  # types that cannot be compared
            continue
        if matches:
            assert may_match(part, table.schema, [Predicate(column, op, wanted)])


def is_skipped(values: list[Any], kind: Any, op: str, wanted: Any) -> bool:
    schema = pa.schema([("c", kind)])
    part, _ = one(with_times(pa.table({"c": pa.array(values, kind)})))
    return not may_match(part, schema, [Predicate("c", op, wanted)])


@pytest.mark.parametrize(
    ("values", "kind", "op", "wanted"),
    [
        ([1, 5, None], pa.int64(), "=", 6),
        ([1, 5], pa.int64(), "<", 1),
        ([1, 5], pa.int64(), ">", 5),
        ([1, 5], pa.int64(), ">=", 6),
        ([1, 5], pa.int64(), "<=", 0),
        ([1, 5], pa.int64(), "is null", None),
        ([None], pa.int64(), "is not null", None),
        ([None], pa.int64(), "=", 1),
        ([1], pa.int64(), "=", None),
        ([2**64 - 1], pa.uint64(), "<", 2**63),
        ([1.5, 2.5], pa.float64(), ">", 2.5),
        ([1.5, float("nan")], pa.float64(), "<", 1.5),
        ([-0.0], pa.float64(), "<", 0.0),
        (["b", "c"], pa.string(), "=", "a"),
        (["a" * 100], pa.string(), ">", "b"),
        ([b"\xff" * 100], pa.binary(), "<", b"\xfe"),
        ([False], pa.bool_(), "=", True),
        ([10], pa.date32(), "<", 10),
        ([10], pa.date32(), "<", date(1970, 1, 11)),
        ([10], pa.timestamp("us", "UTC"), "<", datetime(1970, 1, 1, tzinfo=UTC)),
        ([Decimal("1.50")], pa.decimal128(10, 2), ">", Decimal("1.5")),
        ([Decimal("9.00"), Decimal("10.00")], pa.decimal32(7, 2), ">", 10),
        ([Decimal("-1.50")], pa.decimal256(50, 2), "<", -2),
        ([b"ab"], pa.binary(2), "=", b"ac"),
        ([None], pa.null(), "=", 1),
    ],
)
def test_parts_that_cannot_match_are_skipped(values: list[Any], kind: Any, op: str, wanted: Any) -> None:
    assert is_skipped(values, kind, op, wanted)


@pytest.mark.parametrize(
    ("values", "kind", "op", "wanted"),
    [
        ([1.5, float("nan")], pa.float64(), ">", 2.0),
        ([float("nan")], pa.float64(), "=", 1.0),
        ([1.0], pa.float64(), "=", float("nan")),
        ([0.0], pa.float64(), "=", -0.0),
        ([2**53 + 1], pa.int64(), "=", float(2**53)),
        ([5], pa.int64(), "=", "x"),
        ([1], pa.int64(), "=", True),
        (["a" * 65], pa.string(), ">", "a" * 64),
        (["\U0010ffff" * 65], pa.string(), ">", "\U0010ffff" * 64),
        (["\ud7ff" * 65], pa.string(), ">", "\ud7ff" * 64 + "a"),
        (["a"], pa.string(), "=", b"b"),
        ([10], pa.timestamp("us", "UTC"), "<", datetime(1970, 1, 1)),  # noqa: DTZ001 - a naive one is the point
        ([10], pa.timestamp("s"), "<", datetime(1970, 1, 1, 0, 0, 9, 5)),  # noqa: DTZ001
        ([Decimal(1)], pa.decimal128(5, 0), "=", 2.0),
        ([Decimal(1)], pa.decimal128(5, 0), "=", Decimal("NaN")),
        ([[1]], pa.list_(pa.int64()), "is null", None),
        ([pa.MonthDayNano((1, 2, 3))], pa.month_day_nano_interval(), "=", 1),
    ],
)
def test_parts_without_proof_are_read(values: list[Any], kind: Any, op: str, wanted: Any) -> None:
    assert not is_skipped(values, kind, op, wanted)


def test_predicates_are_a_conjunction_over_known_columns() -> None:
    part, _ = one(sample())
    fits, misses, unknown = Predicate("id", "=", 5), Predicate("id", ">", 99), Predicate("no such", "=", 1)
    assert may_match(part, SCHEMA, [])
    assert may_match(part, SCHEMA, [fits, unknown])
    assert not may_match(part, SCHEMA, [fits, misses])
    assert not may_match(part, SCHEMA, [unknown, misses])
    with pytest.raises(InvalidInput, match=r"'id'.*'!='"):
        Predicate("id", "!=", 1)


def test_ranges_are_rounded_outwards_and_zero_is_the_outer_one() -> None:
    assert compute_range(pa.array(["x" * 70])) == Range("x" * 64, "x" * 63 + "y", 0)
    assert compute_range(pa.array(["\ud7ff" * 65])) == Range("\ud7ff" * 64, "\ud7ff" * 63 + "\ue000", 0)
    assert compute_range(pa.array(["a" + "\U0010ffff" * 64])) == Range("a" + "\U0010ffff" * 63, "b", 0)
    assert compute_range(pa.array([b"\xff" * 65])) == Range(b"\xff" * 64, None, 0)
    assert compute_range(pa.array([[1]])) is None
    for zero in (0.0, -0.0):
        found = compute_range(pa.array([zero]))
        assert found is not None
        assert struct.pack("<dd", found.low, found.high) == struct.pack("<dd", -0.0, 0.0)


def test_a_type_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'e'.*without fields"):
        encode_parts(pa.table({"e": pa.array([{}], pa.struct([])), TIME: [0], DIFF: [1]}), settings=BLOB)


def test_extension_types_come_back() -> None:
    schema = pa.schema([("u", pa.uuid()), ("l", pa.list_(pa.uuid()))])
    storage = pa.array([b"0123456789abcdef", None], pa.binary(16))
    nested = pa.ListArray.from_arrays(
        pa.array([0, 2, 2], pa.int32()), pa.ExtensionArray.from_storage(pa.uuid(), storage)
    )
    table = pa.Table.from_arrays([pa.ExtensionArray.from_storage(pa.uuid(), storage), nested], schema=schema)
    for settings in (INLINE, BLOB):
        part, content = one(with_times(table), settings)
        assert decode_part(part, content, schema, PATH) == with_times(table)


def golden_table() -> Any:
    """Changes in many types. To change it, or the format: EVERTIDE_GOLDEN=write, and a line in CHANGELOG."""
    inner = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("y", pa.list_(pa.string()))])
    columns: list[tuple[Any, list[Any]]] = [
        (pa.field("id", pa.int64(), nullable=False), [1, 2, 3]),
        (pa.field("name", pa.string()), ["a", None, "für"]),
        (pa.field("price", pa.decimal128(12, 2)), [Decimal("1.25"), Decimal("-3.00"), None]),
        (pa.field("ratio", pa.float64()), [0.5, -0.0, float("inf")]),
        (pa.field("at", pa.timestamp("us", "UTC")), [0, -1, None]),
        (pa.field("second", pa.timestamp("s")), [2**62, None, -1]),
        (pa.field("wait", pa.month_day_nano_interval()), [pa.MonthDayNano((1, 2, 3)), None, None]),
        (pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))), [["x"], [], None]),
        (pa.field("inner", inner), [{"x": 1.0, "y": ["q", None]}, None, {"x": 2.0, "y": None}]),
        (pa.field("map", pa.map_(pa.string(), pa.int32())), [[("k", 1)], [], None]),
    ]
    arrays = [pa.array(values, field.type) for field, values in columns]
    table = pa.Table.from_arrays(arrays, schema=pa.schema([field for field, _ in columns]))
    return with_times(table, [4, 4, 5], [1, -1, 3])


@pytest.mark.parametrize("name", ["part-v1.parquet", "inline-v1.arrow"])
def test_files_of_version_1_can_still_be_read(name: str) -> None:
    file, state = GOLDEN / name, GOLDEN / f"{name}.json"
    table = golden_table()
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        part, content = one(table, INLINE if name.startswith("inline") else BLOB)
        file.write_bytes(content)
        part = msgspec.structs.replace(part, inline=b"")
        state.write_bytes(msgspec.json.format(msgspec.json.encode(part)) + b"\n")
    part = msgspec.json.decode(state.read_bytes(), type=Part)
    schema = pa.schema([*table.schema][:-2])
    found = decode_part(part, file.read_bytes(), schema, str(file))
    assert found == table
    assert found.schema.equals(table.schema, check_metadata=True)
    verify_rows(part, found, str(file))
