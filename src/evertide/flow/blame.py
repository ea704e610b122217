"""Finds the rows that make a step fail, or shows that no row does.

Spark's error classes do not say whether a row caused an error: a malformed JSON text, a broken XML document and a lost
executor raise the same kind of error. So the step is repeated, without applying any delta:

1. Spark must be able to run a minimal job. If it cannot, it is away, and no row is to blame.
2. The step is computed again. If it succeeds, its result is used.
3. If it fails again, rows are left out as long as the same views fail. If at most `_CULPRITS_MAX` rows remain and Spark
   still runs a minimal job, the views fail (`ViewFailed`), and the step continues without them. Several rows may
   remain, since a join can fail because of two rows together, and a group because of more.
4. These rows are to blame if the views do not fail with all other rows of the same tables. If they do, or if there are
   no other rows, the query may be the cause: it may need too much memory for any row. Then the error names the rows,
   but not as the cause.
5. If the views fail only with many rows together, no row is to blame, and the first error is raised: large steps can
   lack memory or executors. But if a Python function of the user raised the error, the view fails. The cause may be a
   row, or something that the function accesses and that may work at the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa

from evertide.errors import EvertideError, SparkEnded, Unavailable, ViewFailed
from evertide.flow.leaf_rows import get_diffs
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.rows.columns import Longs
from evertide.rows.python_rows import to_python_rows

__all__ = ["SuspectedFailure", "find_culprit", "retry_step"]

_PARTS_MAX = 16
"""At most this number of parts is tried in one round of `_reduce`."""
_PARTS_MANY = 4
"""The same for more than `ROWS_SMALL_MAX` rows, since each attempt takes long."""
_CULPRITS_MAX = 64
"""At most this number of rows is to blame together."""
_CONTROLS_MAX = 8
"""At most this number of other rows is tried, each alone."""
_DESCRIBED_MAX = 3

T = TypeVar("T")
Deltas = Mapping[str, pa.Table]


class SuspectedFailure(Exception):
    """A part of a step failed, and it is unknown whether a row is to blame. It never leaves the circuit."""

    def __init__(self, views: tuple[str, ...], why: str, error: Exception, *, is_from_function: bool = False) -> None:
        """`error` is raised by the step if no row is to blame. `is_from_function`: a Python function raised it."""
        super().__init__(views, why, error)
        self.views = views
        self.why = why
        self.error = error
        self.is_from_function = is_from_function


def retry_step(
    suspected: SuspectedFailure, compute: Callable[[Deltas], T], check_spark: Callable[[], None], deltas: Deltas
) -> T:
    """Compute the step again; raise `ViewFailed`, or the error of the step, if it fails again.

    `compute` computes a step over a part of the deltas, and raises `SuspectedFailure` or `ViewFailed`.
    """
    check_spark()
    try:
        return compute(deltas)
    except SuspectedFailure as again:
        if again.views != suspected.views:  # the failure is not reproducible
            raise suspected.error from again
    total = sum(delta.num_rows for delta in deltas.values())

    def is_failing(part: Deltas) -> bool:
        return _is_failing(compute, part, suspected.views)

    rows = _reduce(is_failing, deltas, np.arange(total), _PARTS_MAX)
    check_spark()
    if len(rows) > _CULPRITS_MAX and not suspected.is_from_function:
        raise suspected.error
    why = f"{suspected.why}; {_describe_cause(is_failing, deltas, rows)}" if len(rows) else suspected.why
    raise ViewFailed(views=suspected.views, time=-1, why=why) from suspected.error


def _describe_cause(is_failing: Callable[[Deltas], bool], deltas: Deltas, rows: Longs) -> str:
    """Compare the rows with others of the step: with all of them, then with some, each alone."""
    culprits = _describe_rows(deltas, rows)
    others = _find_alike(deltas, rows)
    if not len(others):
        return f"the view fails with {culprits}; the transaction has no other row to compare with"
    alone = others[:: -(-len(others) // _CONTROLS_MAX)]
    if all(is_failing(_select(deltas, part)) for part in (others, *np.split(alone, len(alone)))):
        return f"the view fails with {culprits}, but also with other rows, so the query may be the cause"
    return f"because of {culprits}"


def _find_alike(deltas: Deltas, rows: Longs) -> Longs:
    """The other rows of the same tables that are added or removed as these are."""
    kinds = np.concatenate([2 * at + (get_diffs(delta) > 0) for at, delta in enumerate(deltas.values())])
    return np.setdiff1d(np.flatnonzero(np.isin(kinds, kinds[rows])), rows)


def _is_failing(compute: Callable[[Deltas], T], part: Deltas, views: tuple[str, ...]) -> bool:
    try:
        compute(part)
    except (SuspectedFailure, ViewFailed) as error:
        return error.views == views
    except (Unavailable, SparkEnded):
        raise
    except EvertideError:  # the part is not a valid transaction
        return False
    return False


def find_culprit(is_failing: Callable[[Deltas], bool], deltas: Deltas) -> str:
    """Find the single row that makes a step fail by bisection; empty if there is none."""
    if not is_failing(deltas):
        return ""
    total = sum(delta.num_rows for delta in deltas.values())
    rows = _reduce(is_failing, deltas, np.arange(total), 2)
    return _describe_rows(deltas, rows) if len(rows) == 1 else ""


def _reduce(is_failing: Callable[[Deltas], bool], deltas: Deltas, rows: Longs, parts_max: int) -> Longs:
    """Reduce rows that fail together to a smaller set that fails (delta debugging, with at most `parts_max` parts).

    Each part is tried alone, then all rows but a part: halves, quarters, and so on.
    """
    count = 2
    while len(rows) > 1:
        most = min(parts_max, _PARTS_MANY if len(rows) > ROWS_SMALL_MAX else _PARTS_MAX)
        parts = np.array_split(rows, min(count, len(rows)))
        others = [np.setdiff1d(rows, part) for part in parts] if len(parts) > 2 else []
        found = next((part for part in (*parts, *others) if is_failing(_select(deltas, part))), None)
        if found is not None:
            rows, count = found, 2 if len(found) <= len(parts[0]) else count
        elif count < min(most, len(rows)):
            count = min(2 * count, most)
        else:
            break
    return rows


def _select(deltas: Deltas, rows: Longs) -> dict[str, pa.Table]:
    """The rows with these numbers, counted through all deltas."""
    found, before = {}, 0
    for name, delta in deltas.items():
        here = rows[(rows >= before) & (rows < before + delta.num_rows)] - before
        if len(here):
            found[name] = delta.take(pa.array(here))
        before += delta.num_rows
    return found


def _describe_rows(deltas: Deltas, rows: Longs) -> str:
    chosen = _select(deltas, rows[:_DESCRIBED_MAX])
    culprits = [f"table {name!r}, row {row}" for name, delta in chosen.items() for row in to_python_rows(delta)]
    more = [f"{len(rows) - _DESCRIBED_MAX} more"] if len(rows) > _DESCRIBED_MAX else []
    return " and ".join([*culprits, *more])
