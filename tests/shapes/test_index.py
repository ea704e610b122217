"""The index of shapes finds what evaluating every clause would find, and evaluates only the clauses that it must."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput, Unexpected
from evertide.pgexpr.clause import Where, parse_where
from evertide.shapes.log.index import ShapeIndex
from tests.shapes.clauses import CLAUSES, ROWS, SCHEMA

MANY = settings(max_examples=150, deadline=None, derandomize=True)
KEYED = st.sampled_from(
    [
        *(
            "id = 3",
            "id IN (1, 2, 3)",
            "t = 'abc'",
            "t IN ('abc', '', 'b')",
            "n = 1.5",
            "d = '2024-02-29'",
            "b",
            "b = true",
        ),
        *(
            "id = 3 AND b",
            "t = 'abc' AND i > 0",
            "tz = '2024-02-29 12:00Z'",
            "y = 1",
            "s = 1 OR s = 7",
            "x = '\\xff01'",
        ),
        *("(id = 1 AND b) OR (id = 4 AND t = 'abc')", "tm = '12:30'", "l = 3 AND l = 4", "i = 99999999999", "w = 3"),
        *(
            "id = 3 AND 1 / i = 1",
            "t = 'abc' AND i > 0 AND b",
            "id > 5 AND id < 9",
            "true",
            "false",
            "NULL",
            "ia = '{1}'",
        ),
    ]
)


def parse_clause(clause: str | None) -> Where | None:
    return None if clause is None else parse_where(clause, {}, SCHEMA)


def is_clause(clause: str | None) -> bool:
    """Constants such as 1 / 0 are refused; the oracle tests those."""
    try:
        parse_clause(clause)
    except InvalidInput:
        return False
    return True


def find_handles(index: ShapeIndex, rows: pa.Table) -> dict[Hashable, list[int]]:
    return {handle: chosen.tolist() for handle, chosen in index.find_matches(rows).items()}


def expected(wheres: dict[Any, Where | None], rows: pa.Table) -> dict[Hashable, list[int]]:
    every = [True] * rows.num_rows
    truths = {handle: every if where is None else where.matches(rows).to_pylist() for handle, where in wheres.items()}
    chosen = {handle: [at for at, is_true in enumerate(truth) if is_true] for handle, truth in truths.items()}
    return {handle: places for handle, places in chosen.items() if places}


@MANY
@given(
    st.lists(KEYED | CLAUSES | st.none(), max_size=12),
    st.lists(st.integers(0, ROWS.num_rows - 1), max_size=30),
    st.sets(st.integers(0, 11)),
)
def test_the_index_finds_the_matching_shapes(clauses: list[str | None], places: list[int], removed: set[int]) -> None:
    """Also after some shapes were removed and others added."""
    wheres = {handle: parse_clause(clause) for handle, clause in enumerate(clauses) if is_clause(clause)}
    rows = ROWS.take(pa.array(places, pa.int64()))
    index = ShapeIndex()
    for handle, where in wheres.items():
        index.add(handle, where)
    assert find_handles(index, rows) == expected(wheres, rows)
    for handle in removed:
        index.remove(handle)
    left = {handle: where for handle, where in wheres.items() if handle not in removed}
    assert find_handles(index, rows) == expected(left, rows)
    assert len(index) == len(left)
    for handle in removed & set(wheres):
        index.add(handle, wheres[handle])
    assert find_handles(index, rows) == expected(wheres, rows)


def test_matching_rows_are_returned_as_ordered_positions() -> None:
    index = ShapeIndex()
    index.add("a", parse_clause("id IN (5, 3, 1) AND i IS NOT DISTINCT FROM i"))
    (chosen,) = index.find_matches(ROWS).values()
    assert chosen.dtype == np.int64
    assert chosen.tolist() == [1, 3, 5]


def test_a_handle_is_added_once() -> None:
    index = ShapeIndex()
    index.add("a", None)
    with pytest.raises(Unexpected, match="the index already has it"):
        index.add("a", parse_clause("id = 1"))
    index.remove("a")
    index.remove("a")
    assert find_handles(index, ROWS) == {}


def test_a_removed_shape_leaves_nothing_in_the_index() -> None:
    index, empty = ShapeIndex(), vars(ShapeIndex())
    for handle, clause in enumerate(["id = 1", "id IN (1, 2) AND b", "t LIKE 'a%'", None, "id = 1"]):
        index.add(handle, parse_clause(clause))
    for handle in range(5):
        index.remove(handle)
    assert vars(index) == empty


class Counting:
    """Counts how many clauses are evaluated, and over how many rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[str, int]] = []
        matches = Where.matches

        def counted(where: Where, rows: pa.Table) -> pa.BooleanArray:
            self.rows.append((where.canonical, rows.num_rows))
            return matches(where, rows)

        monkeypatch.setattr(Where, "matches", counted)


def test_clauses_whose_key_does_not_match_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a clause is evaluated only on the rows found by its key, and once for equal rests."""
    index = ShapeIndex()
    for number in range(300):
        index.add(f"plain {number}", parse_clause(f"id = {number}"))
        index.add(f"same {number}", parse_clause(f"id = {number} AND s >= -40000"))
        index.add(f"own {number}", parse_clause(f"id = {number} AND id <> {number - 1}"))
    counting = Counting(monkeypatch)
    rows = ROWS.filter(ROWS["s"].is_valid()).slice(20, 3)
    numbers = rows["id"].to_pylist()
    assert find_handles(index, rows).keys() == {
        f"{kind} {number}" for kind in ("plain", "same", "own") for number in numbers
    }
    assert sorted(count for _, count in counting.rows) == [1, 1, 1, 3]


def test_the_same_clause_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = ShapeIndex()
    for number in range(100):
        index.add(number, parse_clause("t LIKE 'a%'" if number % 2 else "t  LIKE  'a%'"))
    counting = Counting(monkeypatch)
    assert len(find_handles(index, ROWS)) == 100
    assert len(counting.rows) == 1
