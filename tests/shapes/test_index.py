"""The index of shapes finds what evaluating every clause would find, and evaluates only the clauses that it must."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import Conflict, InvalidInput
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


def parsed(clause: str | None) -> Where | None:
    return None if clause is None else parse_where(clause, {}, SCHEMA)


def is_clause(clause: str | None) -> bool:
    """Constants such as 1 / 0 are refused; the oracle tests those."""
    try:
        parsed(clause)
    except InvalidInput:
        return False
    return True


def told(index: ShapeIndex, rows: pa.Table) -> dict[Hashable, list[int]]:
    return {handle: chosen.tolist() for handle, chosen in index.candidates(rows).items()}


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
def test_it_names_what_matches(clauses: list[str | None], places: list[int], removed: set[int]) -> None:
    """Also after some shapes were removed and others added."""
    wheres = {handle: parsed(clause) for handle, clause in enumerate(clauses) if is_clause(clause)}
    rows = ROWS.take(pa.array(places, pa.int64()))
    index = ShapeIndex()
    for handle, where in wheres.items():
        index.add(handle, where)
    assert told(index, rows) == expected(wheres, rows)
    for handle in removed:
        index.remove(handle)
    left = {handle: where for handle, where in wheres.items() if handle not in removed}
    assert told(index, rows) == expected(left, rows)
    assert len(index) == len(left)
    for handle in removed & set(wheres):
        index.add(handle, wheres[handle])
    assert told(index, rows) == expected(wheres, rows)


def test_rows_are_numbers_in_order() -> None:
    index = ShapeIndex()
    index.add("a", parsed("id IN (5, 3, 1) AND i IS NOT DISTINCT FROM i"))
    (chosen,) = index.candidates(ROWS).values()
    assert chosen.dtype == np.int64
    assert chosen.tolist() == [1, 3, 5]


def test_a_handle_is_added_once() -> None:
    index = ShapeIndex()
    index.add("a", None)
    with pytest.raises(Conflict, match="it is in the index already"):
        index.add("a", parsed("id = 1"))
    index.remove("a")
    index.remove("a")
    assert told(index, ROWS) == {}


def test_what_was_removed_leaves_nothing() -> None:
    index, empty = ShapeIndex(), vars(ShapeIndex())
    for handle, clause in enumerate(["id = 1", "id IN (1, 2) AND b", "t LIKE 'a%'", None, "id = 1"]):
        index.add(handle, parsed(clause))
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


def test_clauses_that_do_not_match_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a clause is evaluated only on the rows found by its key, and once for equal rests."""
    index = ShapeIndex()
    for number in range(300):
        index.add(f"plain {number}", parsed(f"id = {number}"))
        index.add(f"same {number}", parsed(f"id = {number} AND s >= -40000"))
        index.add(f"own {number}", parsed(f"id = {number} AND id <> {number - 1}"))
    counting = Counting(monkeypatch)
    rows = ROWS.filter(ROWS["s"].is_valid()).slice(20, 3)
    numbers = rows["id"].to_pylist()
    assert told(index, rows).keys() == {f"{kind} {number}" for kind in ("plain", "same", "own") for number in numbers}
    assert sorted(count for _, count in counting.rows) == [1, 1, 1, 3]


def test_the_same_clause_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = ShapeIndex()
    for number in range(100):
        index.add(number, parsed("t LIKE 'a%'" if number % 2 else "t  LIKE  'a%'"))
    counting = Counting(monkeypatch)
    assert len(told(index, ROWS)) == 100
    assert len(counting.rows) == 1
