"""Changes against a plain model: a dict from (row, time) to the sum of its diffs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput, StateInconsistent
from evertide.rows import changes as module
from evertide.rows.changes import (
    DIFF,
    TIME,
    advance_times,
    check_changes,
    compute_content,
    consolidate,
    consolidate_delta,
    expand,
    find_negative_sums,
    make_changes_schema,
    make_empty_changes,
    match_removed,
)
from evertide.rows.digest import RowHashes, hash_rows
from tests.kit.arrow import canonical_rows, reencoded, tables

EXAMPLES = settings(max_examples=50, deadline=None)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])

Model = dict[tuple[Hashable, ...], int]


def changes(rows: list[tuple[Any, ...]], schema: Any = SCHEMA) -> Any:
    """Rows are (column values..., time, diff)."""
    wanted = make_changes_schema(schema)
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(wanted)]
    return pa.Table.from_arrays(arrays, schema=wanted)


@st.composite
def timed(draw: st.DrawFn, table: Any = None) -> Any:
    table = draw(tables()) if table is None else table
    count = table.num_rows
    times = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    diffs = draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count))
    arrays = [*table.columns, pa.array(times, pa.int64()), pa.array(diffs, pa.int64())]
    return pa.Table.from_arrays(arrays, schema=make_changes_schema(table.schema))


def model(table: Any) -> Model:
    sums: Counter[tuple[Hashable, ...]] = Counter()
    for *key, diff in canonical_rows(table):
        assert isinstance(diff, int)
        sums[tuple(key)] += diff
    return {key: diff for key, diff in sums.items() if diff}


@EXAMPLES
@given(timed())
def test_consolidate_agrees_with_the_model(table: Any) -> None:
    found = consolidate(table)
    assert found.schema == table.schema
    found.validate(full=True)
    assert found.num_rows == len(model(table))
    assert model(found) == model(table)


@EXAMPLES
@given(st.data())
def test_the_same_multiset_is_the_same_table(data: st.DataObject) -> None:
    table = data.draw(timed())
    order = data.draw(st.permutations(range(table.num_rows)))
    cut = data.draw(st.integers(0, table.num_rows))
    other = table.take(pa.array(order, pa.int64()))
    other = pa.concat_tables([other.slice(0, cut), other.slice(cut)])
    assert canonical_rows(consolidate(other)) == canonical_rows(consolidate(table))


@EXAMPLES
@given(timed(), st.integers(-1, 4))
def test_content_agrees_with_the_model(table: Any, as_of: int) -> None:
    found = compute_content(table, as_of)
    kept = table.filter(pa.array(np.asarray(table.column(TIME)) <= as_of, pa.bool_()))
    assert found.schema.names == [*table.schema.names[:-2], DIFF]
    assert model(found) == model(kept.drop_columns([TIME]))
    assert found.num_rows == len(model(found))


@EXAMPLES
@given(timed(), st.integers(0, 4))
def test_advance_changes_no_content_from_since_on(table: Any, since: int) -> None:
    moved = advance_times(table, since)
    assert moved.schema == table.schema
    assert all(time >= since for time in moved.column(TIME).to_pylist())
    for as_of in range(since, 5):
        assert model(compute_content(moved, as_of)) == model(compute_content(table, as_of))


@EXAMPLES
@given(st.data())
def test_check_changes_keeps_the_values_and_gives_the_declared_types(data: st.DataObject) -> None:
    table = data.draw(tables())
    exact = data.draw(timed(table))
    coded = data.draw(reencoded(table))
    given_table = coded.append_column(TIME, exact.column(TIME)).append_column(DIFF, exact.column(DIFF))
    found = check_changes(given_table, table.schema, 0, 4, "shard x")
    found.validate(full=True)
    assert found.schema.equals(make_changes_schema(table.schema), check_metadata=True)
    assert [column.type for column in found.columns] == [field.type for field in found.schema]
    assert canonical_rows(found) == [row for row in canonical_rows(exact) if row[-1] != 0]


def test_consolidated_order_is_by_columns_null_first_then_time() -> None:
    rows = [(2, "b", 1, 1), (2, None, 1, 1), (1, "z", 5, 1), (1, "z", 3, 2), (2, "a", 0, -1), (2, None, 1, 1)]
    assert consolidate(changes(rows)).to_pylist() == [
        {"id": 1, "name": "z", TIME: 3, DIFF: 2},
        {"id": 1, "name": "z", TIME: 5, DIFF: 1},
        {"id": 2, "name": None, TIME: 1, DIFF: 2},
        {"id": 2, "name": "a", TIME: 0, DIFF: -1},
        {"id": 2, "name": "b", TIME: 1, DIFF: 1},
    ]


def test_equality_is_bit_exact() -> None:
    schema = pa.schema([("x", pa.float64())])
    odd_nan = np.array([0x7FF8_0000_0000_0009], np.uint64).view(np.float64)[0]
    table = changes([(v, 1, 1) for v in (0.0, -0.0, float("nan"), odd_nan, None, None)], schema)
    assert sorted(consolidate(table).column(DIFF).to_pylist()) == [1, 1, 2, 2]


@pytest.mark.parametrize("key_bits", [0, 1, 64])
@EXAMPLES
@given(table=timed())
def test_rows_with_equal_hashes_are_compared_by_value(key_bits: int, table: Any) -> None:
    """All rows share a hash (or one of two, or half of it): rows are still told apart by value."""

    def poor(columns: Any) -> RowHashes:
        rows = columns.num_rows
        hashes = ROW_HASHES(columns)
        zeros = np.zeros(rows, np.uint64)
        if key_bits == 64:
            return RowHashes(zeros, hashes.low)
        return RowHashes(hashes.high & np.uint64(key_bits), zeros)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "hash_rows", poor)
        found = consolidate(table)
        assert model(found) == model(table)
        assert found.num_rows == len(model(table))
        assert model(compute_content(table, 3)) == model(table.drop_columns([TIME]))


ROW_HASHES = hash_rows


def test_times_with_the_same_sort_key_are_distinguished() -> None:
    """The time's contribution to the sort key can cancel the difference of two hashes."""
    table = changes([(1, "a", 0, 1), (2, "b", 1, 1), (1, "a", 0, 1), (2, "b", 1, 1)])
    with pytest.MonkeyPatch.context() as patch:
        spread = module._TIME_SPREAD
        high = np.array([spread, 0, spread, 0], np.uint64)
        patch.setattr(module, "hash_rows", lambda _: RowHashes(high, np.array([7, 8, 7, 8], np.uint64)))
        assert consolidate(table).column(DIFF).to_pylist() == [2, 2]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_does_not_fit_is_an_error(sign: int) -> None:
    most = 2**63 - 1 if sign > 0 else -(2**63)
    assert consolidate(changes([(1, "a", 0, most), (1, "a", 0, -sign)])).column(DIFF).to_pylist() == [most - sign]
    with pytest.raises(InvalidInput, match=rf"'id': 1, 'name': 'a'.*add up to {most + sign},"):
        consolidate(changes([(2, "b", 0, 1), (1, "a", 0, most), (1, "a", 0, sign)]))
    with pytest.raises(InvalidInput, match="shard y"):
        compute_content(changes([(1, "a", 0, most), (1, "a", 1, most)]), 1, "shard y")


def test_expand_repeats_rows_and_refuses_negative_counts() -> None:
    table = compute_content(changes([(1, "a", 0, 2), (2, "b", 0, 1), (3, "c", 0, 1), (3, "c", 1, -1)]), 5)
    assert expand(table).to_pylist() == [{"id": 1, "name": "a"}] * 2 + [{"id": 2, "name": "b"}]
    with pytest.raises(StateInconsistent, match=r"shard z.*'id': 3.*count -1"):
        expand(compute_content(changes([(3, "c", 1, -1)]), 5), "shard z")


@EXAMPLES
@given(timed())
def test_lowest_is_the_lowest_running_sum(table: Any) -> None:
    plain = table.drop_columns([TIME])
    rows = canonical_rows(plain.drop_columns([DIFF]))
    sums: Counter[Hashable] = Counter()
    expected: dict[Hashable, int] = {}
    for row, diff in zip(rows, plain.column(DIFF).to_pylist(), strict=True):
        sums[row] += diff
        if sums[row] < expected.get(row, 0):
            expected[row] = sums[row]
    found = find_negative_sums(plain)
    assert (
        dict(zip(canonical_rows(found.drop_columns([DIFF])), found.column(DIFF).to_pylist(), strict=True)) == expected
    )


@EXAMPLES
@given(timed())
def test_removed_rows_match_the_first_equal_rows(table: Any) -> None:
    plain = table.drop_columns([TIME])
    rows = plain.drop_columns([DIFF])
    removed = consolidate_delta(plain.filter(pc.less(plain[DIFF], 0)))
    left = Counter(
        {
            key: -diff
            for key, diff in zip(canonical_rows(removed.drop_columns([DIFF])), removed[DIFF].to_pylist(), strict=True)
        }
    )
    expected = []
    for at, key in enumerate(canonical_rows(rows)):
        if left[key] > 0:
            left[key] -= 1
            expected.append(at)
    found, rest = match_removed(removed, rows)
    assert found.tolist() == expected
    keys = canonical_rows(rest.drop_columns([DIFF]))
    assert dict(zip(keys, (-each for each in rest[DIFF].to_pylist()), strict=True)) == dict(+left)


def test_empty() -> None:
    table = make_empty_changes(SCHEMA)
    assert table.schema == make_changes_schema(SCHEMA)
    assert consolidate(table) == table
    assert advance_times(table, 9) == table
    assert compute_content(table, 1).num_rows == 0
    assert expand(compute_content(table, 1)).schema == SCHEMA
    assert check_changes(table, SCHEMA, 0, 0, "x") == table


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"name": ["a"], "id": [1]}, "column 0.*'name'.*'id'"),
        ({"id": [1]}, "column 1.*'__time'.*'name'"),
        ({"id": [1], "name": ["a"], "more": [1]}, "column 2.*'more'.*'__time'"),
        ({"id": ["1"], "name": ["a"]}, "column 'id'.*string.*int64"),
        ({"id": pa.array([1], pa.int32()), "name": ["a"]}, "column 'id'.*int32.*int64"),
        ({"id": [1, None], "name": ["a", "b"]}, "column 'id'.*row 1 holds None"),
        ({"id": [1], "name": [b"a"]}, "column 'name'.*binary.*string"),
    ],
)
def test_error_names_columns_that_the_shard_does_not_have(columns: dict[str, Any], message: str) -> None:
    rows = len(columns["id"])
    table = pa.table({**columns, TIME: [0] * rows, DIFF: [1] * rows})
    with pytest.raises(InvalidInput, match=f"(?s)shard x.*{message}"):
        check_changes(table, SCHEMA, 0, 1, "shard x")


@pytest.mark.parametrize(
    ("times", "diffs", "message"),
    [
        ([3, 5, 6], [1, 1, 1], r"'__time'.*row 2 has the time 6.*\[3, 6\)"),
        ([2, 3, 4], [1, 1, 1], r"'__time'.*row 0 has the time 2"),
        ([3, None, 4], [1, 1, 1], "'__time'.*row 1 holds None"),
        ([3, 3, 4], [1, 1, None], "'__diff'.*row 2 holds None"),
        (pa.array([3, 3, 4], pa.int32()), [1, 1, 1], "'__time'.*int32"),
        ([3, 3, 4], [1.0, 1.0, 1.0], "'__diff'.*double"),
    ],
)
def test_error_names_invalid_times_and_diffs(times: Any, diffs: Any, message: str) -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], TIME: times, DIFF: diffs})
    with pytest.raises(InvalidInput, match=f"shard x.*{message}"):
        check_changes(table, SCHEMA, 3, 6, "shard x")


def test_error_has_the_row_number_of_a_null_across_chunks_and_in_nested_columns() -> None:
    element = pa.field("element", pa.int64(), nullable=False)
    inner = pa.struct([pa.field("must", pa.list_(element), nullable=False), pa.field("may", pa.int64())])
    schema = pa.schema([pa.field("s", inner)])
    open_type = pa.struct([("must", pa.list_(pa.int64())), ("may", pa.int64())])
    fine = pa.array([{"must": [1], "may": None}, None], open_type)
    null_element = pa.array([{"must": []}, {"must": [1, None]}], open_type)
    null_list = pa.array([None, {"must": None}], open_type)

    def check_chunks(*chunks: Any) -> Any:
        rows = sum(map(len, chunks))
        table = pa.table({"s": pa.chunked_array(chunks), TIME: [0] * rows, DIFF: [1] * rows})
        return check_changes(table, schema, 0, 1, "shard x")

    assert check_chunks(fine, fine).num_rows == 4
    for bad in (null_element, null_list):
        with pytest.raises(InvalidInput, match=r"'s'.*row 3 holds"):
            check_chunks(fine, bad)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([(TIME, pa.int64())]), "'__time'.*reserved"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "'a'.*twice"),
        (pa.schema([("a", pa.list_(pa.struct([])))]), "'a'.*without fields"),
        (pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]), "'a'.*encoding"),
        (pa.schema([("a", pa.list_(pa.string_view()))]), "'a'.*encoding"),
    ],
)
def test_schemas_that_a_shard_cannot_hold_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_changes_schema(schema)
