"""The digest: a stored format, so its values are pinned; and one test for each property that other modules rely on."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput, Unexpected
from evertide.rows import digest as module
from evertide.rows.digest import (
    ZERO,
    RowHashes,
    add_digests,
    compute_digest,
    from_hex,
    hash_rows,
    to_hex,
)
from tests.kit.arrow import canonical_rows, reencoded, tables

EXAMPLES = settings(max_examples=50, deadline=None)
MODULO = 1 << 128


def hashes(table: Any) -> list[int]:
    found = hash_rows(table)
    return [int(high) << 64 | int(low) for high, low in zip(found.high, found.low, strict=True)]


def column(values: list[Any], kind: Any) -> list[int]:
    return hashes(pa.table({"c": pa.array(values, kind)}))


def diffs_of(count: int) -> st.SearchStrategy[Any]:
    some = st.one_of(st.sampled_from([1, -1, 2, 2**63 - 1, -(2**63), 2**32]), st.integers(-(2**63), 2**63 - 1))
    return st.lists(some, min_size=count, max_size=count).map(lambda numbers: np.array(numbers, np.int64))


NESTED = pa.struct([pa.field("a", pa.list_(pa.int32())), pa.field("b", pa.map_(pa.string(), pa.bool_()))])

GOLDEN: list[tuple[Any, Any, str]] = [
    (pa.null(), None, "d72869b576c1a6a95e0d6677882dac57"),
    (pa.bool_(), True, "e4d971771b652c2024318c413869eefd"),
    (pa.int8(), -5, "2d8f43ecb1ccf69613e572694eabbead"),
    (pa.int64(), -5, "2d8f43ecb1ccf69613e572694eabbead"),
    (pa.uint64(), 2**64 - 1, "de0a564cbcd060c4512476c06eeb0b21"),
    (pa.float16(), np.float16(0.5), "ad8c10d9a1f98c6427ff50bc51b6037c"),
    (pa.float32(), 0.5, "053d0cddfef75fe32cc59021b5d510ce"),
    (pa.float64(), 0.5, "b8bbcb010d5173ace9daff0410b15bd6"),
    (pa.float64(), -0.0, "481ec0a212a9f3dbc95ef49ccb720cda"),
    (pa.float64(), float("nan"), "8709d8d19b4c0ac20e1eade7b44859f9"),
    (pa.decimal32(5, 2), Decimal("-1.25"), "91535d18b2536a7c7956228888d8bc00"),
    (pa.decimal64(12, 2), Decimal("-1.25"), "91535d18b2536a7c7956228888d8bc00"),
    (pa.decimal128(20, 2), Decimal("-1.25"), "20d615d8215e788c74158f1b1c92fb3e"),
    (pa.decimal256(50, 2), Decimal("-1.25"), "59322bc83257093c7e82b16ebee76a1f"),
    (pa.string(), "", "e83e75f339964323886b0997f5ec4e10"),
    (pa.string(), "für", "9d31a1712168cb86b71445741d6c1ab7"),
    (pa.binary(), b"\x00\xff", "14c7cd260dbdc056dba157f24f34cb06"),
    (pa.binary(2), b"\x00\xff", "14c7cd260dbdc056dba157f24f34cb06"),
    (pa.date32(), 19000, "c652e596216aea16e8be8792fbfd36e2"),
    (pa.timestamp("us", "UTC"), -1, "de0a564cbcd060c4512476c06eeb0b21"),
    (pa.duration("ns"), 7, "f75f04cbb5a1a1dd49ca4426a00733c9"),
    (pa.month_day_nano_interval(), pa.MonthDayNano((1, -2, 3)), "3eff9fda33a5062209d2631313807f8e"),
    (pa.list_(pa.int64()), [], "950deb4d319a677466ce9cf83a5e3f58"),
    (pa.list_(pa.int64()), [1, None, 3], "48970d5804ba90555475e9a3ce82ac76"),
    (pa.list_(pa.int64(), 2), [1, 2], "d36bf434bc18d74a76ef1686794a48ac"),
    (pa.list_(pa.list_(pa.int64())), [[1], [2]], "61fb8367bf2591fa70cf7d10a2cf6fdc"),
    (pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)], "94d055e31bfe6f03c128840078fbc83b"),
    (NESTED, {"a": [1], "b": [("x", True)]}, "6cb6fa6c3aee61517fc23d5b8fb246bb"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN, ids=[f"{kind}-{value}" for kind, value, _ in GOLDEN])
def test_hashes_equal_the_stored_ones(kind: Any, value: Any, expected: str) -> None:
    assert [to_hex(number) for number in column([value], kind)] == [expected]


def test_the_digest_of_a_table_equals_the_stored_one() -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, 3, 3], pa.int64()),
            "name": pa.array(["a", None, "ccc", "ccc"]),
            "price": pa.array([0.5, float("nan"), None, None]),
        }
    )
    diffs = np.array([1, -(2**63), 2**63 - 1, -7], np.int64)
    assert to_hex(compute_digest(table, diffs)) == "844c1b71380996da3e0770fb661ec20b"
    assert to_hex(compute_digest(table.slice(0, 0), diffs[:0])) == ZERO


@EXAMPLES
@given(st.data())
def test_the_physical_form_does_not_matter(data: st.DataObject) -> None:
    table = data.draw(tables())
    assert hashes(data.draw(reencoded(table))) == hashes(table)


@EXAMPLES
@given(st.data())
def test_the_order_of_rows_does_not_matter(data: st.DataObject) -> None:
    table = data.draw(tables())
    diffs = data.draw(diffs_of(table.num_rows))
    order = np.array(data.draw(st.permutations(range(table.num_rows))), np.int64)
    assert compute_digest(table.take(pa.array(order)), diffs[order]) == compute_digest(table, diffs)


@EXAMPLES
@given(st.data())
def test_a_digest_is_linear_and_exact(data: st.DataObject) -> None:
    table = data.draw(tables())
    diffs = data.draw(diffs_of(table.num_rows))
    whole = compute_digest(table, diffs)
    assert whole == sum(number * int(diff) for number, diff in zip(hashes(table), diffs, strict=True)) % MODULO
    cut = data.draw(st.integers(0, table.num_rows))
    parts = [
        to_hex(compute_digest(table.slice(0, cut), diffs[:cut])),
        to_hex(compute_digest(table.slice(cut), diffs[cut:])),
    ]
    assert add_digests(*parts) == to_hex(whole)
    with np.errstate(over="ignore"):
        fits = diffs != -(2**63)
        taken = table.filter(pa.array(fits))
        negated = compute_digest(taken, -diffs[fits])
    assert add_digests(to_hex(negated), to_hex(compute_digest(taken, diffs[fits]))) == ZERO


@EXAMPLES
@given(st.data())
def test_rows_hash_alike_if_and_only_if_they_are_equal(data: st.DataObject) -> None:
    table = data.draw(tables())
    rows, numbers = canonical_rows(table), hashes(table)
    assert len(set(zip(rows, numbers, strict=True))) == len(set(rows)) == len(set(numbers))


@pytest.mark.parametrize("count", [1, 3, 9000, 20_000])
def test_large_tables_are_exact_too(count: int) -> None:
    """Over several blocks, with strings that repeat (stored as a dictionary) and strings that do not."""
    numbers = np.arange(count)
    table = pa.table(
        {
            "n": numbers,
            "few": pa.array([None if i % 7 == 0 else f"x{i % 10}" for i in range(count)]),
            "many": pa.array([f"y{i}" for i in range(count)]),
        }
    )
    diffs = (numbers - count // 2).astype(np.int64) * (2**40 + 1)
    single = [hashes(table.slice(i, 1))[0] for i in range(0, count, 997)]
    assert hashes(table)[::997] == single
    assert compute_digest(table, diffs) == sum(a * int(b) for a, b in zip(hashes(table), diffs, strict=True)) % MODULO
    assert compute_digest(table, np.full(count, -3)) == -3 * sum(hashes(table)) % MODULO


def differ(kind: Any, *values: Any) -> None:
    assert len(set(column(list(values), kind))) == len(values)


def test_values_that_differ_hash_differently() -> None:
    differ(pa.int64(), None, 0, 1, -1)
    differ(pa.bool_(), None, False, True)
    differ(pa.float64(), None, 0.0, -0.0, float("nan"), float("inf"))
    differ(pa.string(), None, "", "\x00", "\x00\x00", "a")
    differ(pa.list_(pa.int64()), None, [], [None], [None, None], [0], [1, 2], [2, 1], [1, 2, 0])
    differ(pa.list_(pa.list_(pa.int64())), [[1], [2]], [[1, 2], []], [[], [1, 2]], [[1, 2]], [None, [1, 2]])
    differ(pa.struct([("a", pa.int64()), ("b", pa.int64())]), None, {"a": None, "b": None}, {"a": 1}, {"b": 1})
    differ(pa.map_(pa.string(), pa.int64()), None, [], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 2), ("b", 1)])
    differ(pa.decimal256(50, 0), *(Decimal(sign * 2**shift) for sign in (1, -1) for shift in (0, 63, 64, 128, 160)))


def test_the_digest_depends_on_the_order_of_columns() -> None:
    table = pa.table({"a": pa.array([None, 1, 1, 2]), "b": pa.array([1, None, 2, 1])})
    assert len(set(hashes(table))) == 4
    wide = pa.table({"a": pa.array(["ab", "a"]), "b": pa.array(["c", "bc"])})
    assert len(set(hashes(wide))) == 2


def test_an_index_under_null_may_be_anything() -> None:
    indices = pa.Array.from_buffers(
        pa.int8(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 99, 0], np.int8))], null_count=1
    )
    coded = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None]), safe=False)
    assert hashes(pa.table({"c": coded})) == column([None, None, "a"], pa.string())


def test_all_nans_hash_alike() -> None:
    for dtype, numbers in (
        ("<u2", [0x7E00, 0xFE01, 0x7C01]),
        ("<u4", [0x7FC00000, 0xFFC00001, 0x7F800001]),
        ("<u8", [0x7FF8 << 48, (0xFFF8 << 48) + 9, (0x7FF0 << 48) + 1]),
    ):
        bits = np.array(numbers, dtype)
        kind = {"<u2": pa.float16(), "<u4": pa.float32(), "<u8": pa.float64()}[dtype]
        array = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(bits)])
        assert len(set(hashes(pa.table({"c": array})))) == 1


def test_integers_hash_by_value_whatever_their_width() -> None:
    assert column([5, -5], pa.int8()) == column([5, -5], pa.int64()) == column([5, -5], pa.timestamp("us"))
    assert column([b"ab"], pa.binary()) == column(["ab"], pa.string()) == column([b"ab"], pa.binary(2))
    assert column([0.5], pa.float32()) != column([0.5], pa.float64())


def test_extension_types_hash_as_their_storage() -> None:
    storage = pa.array([b"0123456789abcdef", None], pa.binary(16))
    extended = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    assert hashes(pa.table({"c": extended})) == hashes(pa.table({"c": storage}))


def test_a_type_that_has_no_hash_is_named() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    inside = pa.StructArray.from_arrays([union], ["u"])
    for array in (union, inside):
        with pytest.raises(InvalidInput, match=r"column 'odd'.*sparse_union"):
            hash_rows(pa.table({"odd": array}))


def test_rows_and_diffs_must_agree() -> None:
    with pytest.raises(Unexpected, match="2 rows have 1 diffs"):
        compute_digest(pa.table({"a": [1, 2]}), np.array([1], np.int64))


def test_a_table_without_columns_has_rows() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert len(set(hashes(table))) == 1
    assert compute_digest(table, np.array([1, -1], np.int64)) == 0


def test_a_column_too_large_for_small_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = pa.chunked_array([pa.array(["a", None]), pa.array(["b"])])
    lists = pa.chunked_array([pa.array([[1], None]), pa.array([[2, 3]])])
    table = pa.table({"s": chunks, "l": lists})
    expected = hashes(table)
    monkeypatch.setattr("evertide.rows.columns._SMALL_OFFSETS_BYTES_MAX", 0)
    assert hashes(table) == expected


def test_hexadecimal_form() -> None:
    assert to_hex(-1) == "f" * 32
    assert from_hex(to_hex(12345)) == 12345
    assert add_digests("f" * 32, to_hex(1)) == ZERO
    assert add_digests(to_hex(-99), to_hex(99)) == ZERO
    assert isinstance(hash_rows(pa.table({"a": [1]})), RowHashes)
    assert module.ZERO == "0" * 32
