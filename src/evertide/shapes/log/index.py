"""`ShapeIndex`: finds the shapes that a batch of rows concerns, without evaluating each shape's clause.

1. Shapes with equal clauses share one entry.
2. A clause with an `index_key` is found by the column's values: the cost depends on the rows in the batch and the
   matches, not on the number of other shapes with such clauses.
3. The rest of such a clause (`Where.rest`) is evaluated only on the rows found by the key, and once for all clauses
   with the same rest.
4. Clauses without a key are each evaluated over the batch.
5. The result is exact. Row numbers are in ascending order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evertide.errors import Unexpected
from evertide.pgexpr.clause import Where
from evertide.pgexpr.types.columns import to_values
from evertide.pgexpr.types.sqltypes import type_of
from evertide.rows.columns import sort_distinct

Rows = npt.NDArray[np.int64]


class ShapeIndex:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._wheres: dict[Hashable, Where | None] = {}
        self._handles: dict[Where | None, dict[Hashable, None]] = {}
        self._keyed: dict[str, dict[Any, dict[Where, None]]] = {}
        """Clauses by column and value."""
        self._others: dict[Where, None] = {}

    def __len__(self) -> int:
        return len(self._wheres)

    def add(self, handle: Hashable, where: Where | None) -> None:
        """Without `where`, the shape has all rows."""
        if handle in self._wheres:
            raise Unexpected(where=f"shape {handle}", why="the index already has it")
        self._wheres[handle] = where
        is_new = where not in self._handles
        self._handles.setdefault(where, {})[handle] = None
        if is_new and where is not None:
            self._add_clause(where)

    def remove(self, handle: Hashable) -> None:
        """Does nothing if the shape is not in the index."""
        if handle not in self._wheres:
            return
        where = self._wheres.pop(handle)
        handles = self._handles[where]
        del handles[handle]
        if not handles:
            del self._handles[where]
            if where is not None:
                self._remove_clause(where)

    def find_matches(self, rows: pa.Table) -> dict[Hashable, Rows]:
        """The matching row numbers by handle; shapes without a match are left out."""
        unkeyed: dict[Where | None, Rows] = {}
        if rows.num_rows and None in self._handles:
            unkeyed[None] = np.arange(rows.num_rows, dtype=np.int64)
        for where in self._others:
            unkeyed[where] = np.flatnonzero(_evaluate(where, rows))
        keyed = self._filter_by_rest(rows, self._find_by_value(rows))
        return {
            handle: matching
            for where, matching in (*unkeyed.items(), *keyed.items())
            if len(matching)
            for handle in self._handles[where]
        }

    def _add_clause(self, where: Where) -> None:
        key = where.index_key()
        if key is None:
            self._others[where] = None
            return
        column, values = key
        by_value = self._keyed.setdefault(column, {})
        for value in values:
            by_value.setdefault(value, {})[where] = None

    def _remove_clause(self, where: Where) -> None:
        key = where.index_key()
        if key is None:
            del self._others[where]
            return
        column, values = key
        by_value = self._keyed[column]
        for value in values:
            del by_value[value][where]
            if not by_value[value]:
                del by_value[value]
        if not by_value:
            del self._keyed[column]

    def _find_by_value(self, rows: pa.Table) -> dict[Where, Rows]:
        """The rows that have one of the values of a clause's key."""
        matches: dict[Where, list[Rows]] = {}
        for column, by_value in self._keyed.items():
            for value, places in _find_places(rows.column(column), by_value).items():
                matching = np.array(places, np.int64)
                for where in by_value[value]:
                    matches.setdefault(where, []).append(matching)
        return {where: each[0] if len(each) == 1 else np.sort(np.concatenate(each)) for where, each in matches.items()}

    def _filter_by_rest(self, rows: pa.Table, matches: dict[Where, Rows]) -> dict[Where, Rows]:
        """Reduce the rows of each clause to those that match its rest."""
        by_rest: dict[Where | None, list[Where]] = {}
        for where in matches:
            by_rest.setdefault(where.rest, []).append(where)
        for rest, wheres in by_rest.items():
            if rest is None:
                continue
            candidates = [matches[where] for where in wheres]
            truths = np.zeros(rows.num_rows, np.bool_)
            truths[_match_rows(rest, rows, candidates)] = True
            for where, matching in zip(wheres, candidates, strict=True):
                matches[where] = matching[truths[matching]]
        return matches


def _find_places(column: Any, wanted: dict[Any, Any]) -> dict[Any, list[int]]:
    """Row numbers by value, for the wanted values."""
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(to_values(column, type_of(column.type))):
        if value in wanted:
            places.setdefault(value, []).append(place)
    return places


def _match_rows(where: Where, rows: pa.Table, chosen: Sequence[Rows]) -> Rows:
    """The chosen rows that match; evaluates only these rows and the needed columns."""
    places = chosen[0] if len(chosen) == 1 else sort_distinct(np.concatenate(chosen))
    needed = rows.select(sorted(where.columns)) if where.columns else rows
    return places[_evaluate(where, needed.take(pa.array(places)))]


def _evaluate(where: Where, rows: pa.Table) -> npt.NDArray[np.bool_]:
    truths: npt.NDArray[np.bool_] = where.matches(rows).to_numpy(zero_copy_only=False)
    return truths
