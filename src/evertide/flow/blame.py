"""Finds the rows that make a step fail, or shows that no row does.

The class of an error does not say whether a row caused it: a malformed JSON text, a broken XML document and a lost
executor raise the same class, and a division by zero may be due to a moment's state of something that a function reads.
So the step is repeated, without applying any delta:

1. Spark must be able to run a minimal job, unless the error cannot come from Spark (`SuspectedFailure.is_certain`). If
   it cannot, it is away, and no row is to blame.
2. The step is computed again. If it succeeds, its result is used. If other views fail, no view is to blame, and the
   step fails with `SparkAway`, so that it is retried later.
3. If the same views fail again, rows are left out as long as they fail. If at most `_CULPRITS_MAX` rows remain and
   Spark still runs a minimal job, the views fail (`ViewFailed`), and the step continues without them. Several rows may
   remain, since a join can fail because of two rows together, and a group because of more.
4. These rows are to blame if the views do not fail with all other rows of the same tables. If they do, or if there are
   no other rows, the query may be the cause: it may need too much memory for any row. Then the error names the rows,
   but not as the cause.
5. If more rows remain, no row is to blame. If the error cannot come from Spark, the views fail. Otherwise the step may
   lack memory or executors, and fails with `SparkAway`. If the same views have failed in `_TRIES_MAX` tries of the same
   step, and Spark runs a minimal job and has lost no executor meanwhile, the views fail: they would never succeed, and
   all other views would wait (`FailedSteps`).

The number of attempts in 3 is limited. After an error for lack of memory, which takes long, only halves are tried:
such an error is caused by one large row or by the number of rows, not by two rows together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from evertide.errors import EvertideError, SparkEnded, Unavailable, ViewFailed
from evertide.flow.leaf_rows import get_diffs
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.rows.changes import DIFF
from evertide.rows.columns import Longs
from evertide.rows.digest import compute_digest, to_hex
from evertide.rows.python_rows import to_python_rows

_TRIES_MAX = 3
"""The views fail after this number of tries of a step that fails only with many rows."""
_ATTEMPTS_MAX = 192
"""At most this number of parts of a step is tried to find the rows; one row is always found by fewer, in halves."""
_ATTEMPT_LARGE = 4
"""An attempt with more than `ROWS_SMALL_MAX` rows counts as this number."""
_PARTS_MAX = 16
"""At most this number of parts is tried in one round of `_Search`."""
_PARTS_LARGE_MAX = 4
"""The same for more than `ROWS_SMALL_MAX` rows, since each attempt takes long."""
_PARTS_SLOW_MAX = 2
"""The same after an error that takes long (`_SLOW`)."""
_SLOW = ("OutOfMemory", "ExecutorLost")
_CULPRITS_MAX = 64
"""At most this number of rows is to blame together."""
_CONTROLS_MAX = 8
"""At most this number of other rows is tried, each alone."""
_DESCRIBED_MAX = 3

T = TypeVar("T")
Deltas = Mapping[str, pa.Table]
CheckSpark = Callable[[], Set[str]]
"""Runs a minimal job and returns the ids of the executors; raises `SparkAway` or `SparkEnded` if Spark cannot."""


class SuspectedFailure(Exception):
    """A part of a step failed, and it is unknown whether a row is to blame. It never leaves the circuit."""

    def __init__(self, views: tuple[str, ...], why: str, error: Unavailable, *, is_certain: bool) -> None:
        """`error` is raised if no view is to blame. `is_certain`: a lack of executors or their memory does not raise
        such an error, so if it repeats, the views fail."""
        super().__init__(views, why, error)
        self.views = views
        self.why = why
        self.error = error
        self.is_certain = is_certain

    @property
    def is_slow(self) -> bool:
        return isinstance(self.__cause__, MemoryError) or any(each in self.why for each in _SLOW)


@dataclass(frozen=True, slots=True)
class _FailedStep:
    tries: int
    executors: frozenset[str]
    """At the first try."""
    remaining: int
    """The number of rows that fail together, as far as the first try has found."""


class FailedSteps:
    """The steps of a process that failed with `SparkAway`, by their views and rows. Any thread may call it.

    A process has one, since each opening and each backfill has circuits of its own, and tries the same step again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[tuple[tuple[str, ...], str], _FailedStep] = {}

    def read(self, views: tuple[str, ...], deltas: Deltas) -> _FailedStep | None:
        return self._steps.get((views, _digest_rows(deltas)))

    def note(self, views: tuple[str, ...], deltas: Deltas, executors: Set[str], remaining: int) -> int:
        """Note a failure; return the number of tries that failed since an executor was last lost."""
        key = views, _digest_rows(deltas)
        with self._lock:
            known = self._steps.get(key)
            if known is None or not known.executors <= executors:
                known = _FailedStep(0, frozenset(executors), remaining)
            self._steps[key] = known = _FailedStep(known.tries + 1, known.executors, remaining)
        return known.tries

    def forget(self, views: Collection[str], deltas: Deltas) -> None:
        """Forget the failures of a step that these views have computed, or that the failed views have left."""
        if not self._steps:
            return
        digest = _digest_rows(deltas)
        with self._lock:
            for key in [key for key in self._steps if key[1] == digest and set(key[0]) <= set(views)]:
                del self._steps[key]


def _digest_rows(deltas: Deltas) -> str:
    digests = (
        f"{name}={to_hex(compute_digest(delta.drop_columns([DIFF]), get_diffs(delta)))}"
        for name, delta in sorted(deltas.items())
    )
    return " ".join(digests)


def retry_step(
    suspected: SuspectedFailure,
    compute: Callable[[Deltas], T],
    check_spark: CheckSpark,
    deltas: Deltas,
    failed_steps: FailedSteps,
) -> T:
    """Compute the step again; raise `ViewFailed`, or the error of the step, if it fails again.

    `compute` computes a step over a part of the deltas, and raises `SuspectedFailure` if it fails.
    """
    is_certain = suspected.is_certain
    executors = frozenset() if is_certain else check_spark()
    known = failed_steps.read(suspected.views, deltas)
    total = sum(delta.num_rows for delta in deltas.values())
    if known is not None and not is_certain:  # this try repeats the step, and its rows were searched before
        remaining = known.remaining
    else:
        try:
            return compute(deltas)
        except SuspectedFailure as again:
            if again.views != suspected.views:  # the failure is not reproducible
                raise suspected.error from again
            is_certain = is_certain and again.is_certain
        search = _Search(compute, deltas, suspected)
        rows = search.reduce(np.arange(total))
        executors = executors if is_certain else check_spark()
        if len(rows) <= _CULPRITS_MAX:
            failed_steps.forget(suspected.views, deltas)
            cause = f"{suspected.why}; {_describe_cause(search, deltas, rows)}" if len(rows) else suspected.why
            raise ViewFailed(views=suspected.views, time=-1, why=cause) from suspected.error
        remaining = len(rows)
    why = (
        f"the view fails with {remaining} of the {total} rows together, and with no smaller part of them that was tried"
    )
    if not is_certain:
        tries = failed_steps.note(suspected.views, deltas, executors, remaining)
        if tries < _TRIES_MAX:
            raise suspected.error
        why = f"{why}; it failed in {tries} tries, while Spark ran other jobs and lost no executor"
    failed_steps.forget(suspected.views, deltas)
    raise ViewFailed(views=suspected.views, time=-1, why=f"{suspected.why}; {why}") from suspected.error


class _Search:
    """Computes parts of a step, to find the rows with which it fails as it did as a whole."""

    def __init__(self, compute: Callable[[Deltas], object], deltas: Deltas, suspected: SuspectedFailure) -> None:
        self._compute = compute
        self._deltas = deltas
        self._views = suspected.views
        self._parts_max = _PARTS_SLOW_MAX if suspected.is_slow else _PARTS_MAX

    def reduce(self, rows: Longs) -> Longs:
        """Reduce rows that fail together to a smaller set that fails (delta debugging).

        Each part is tried alone, then all rows but a part: halves, quarters, and so on.
        """
        count, left = 2, _ATTEMPTS_MAX
        while len(rows) > 1:
            is_large = len(rows) > ROWS_SMALL_MAX
            most = min(self._parts_max, _PARTS_LARGE_MAX if is_large else _PARTS_MAX)
            cost = _ATTEMPT_LARGE if is_large else 1
            parts = np.array_split(rows, min(count, len(rows)))
            others = [np.setdiff1d(rows, part) for part in parts] if len(parts) > 2 else []
            tried = [*parts, *others][: left // cost]
            found = next((at for at, part in enumerate(tried) if self.is_failing(part)), None)
            left -= cost * (len(tried) if found is None else found + 1)
            if found is not None:
                rows, count = tried[found], 2 if found < len(parts) else count
            elif left >= cost and count < min(most, len(rows)):
                count = min(2 * count, most)
            else:
                break
        return rows

    def is_failing(self, rows: Longs) -> bool:
        try:
            self._compute(_select(self._deltas, rows))
        except SuspectedFailure as error:
            return error.views == self._views
        except (Unavailable, SparkEnded):
            raise
        except EvertideError:  # the part is not a valid transaction
            return False
        return False


def _describe_cause(search: _Search, deltas: Deltas, rows: Longs) -> str:
    """Compare the rows with others of the step: with all of them, then with some, each alone."""
    culprits = _describe_rows(deltas, rows)
    others = _find_alike(deltas, rows)
    if not len(others):
        return f"the view fails with {culprits}; the transaction has no other row to compare with"
    alone = others[:: -(-len(others) // _CONTROLS_MAX)]
    if all(search.is_failing(part) for part in (others, *np.split(alone, len(alone)))):
        return f"the view fails with {culprits}, but also with other rows, so the query may be the cause"
    return f"because of {culprits}"


def _find_alike(deltas: Deltas, rows: Longs) -> Longs:
    """The other rows of the same tables that are added or removed as these are."""
    kinds = np.concatenate([2 * at + (get_diffs(delta) > 0) for at, delta in enumerate(deltas.values())])
    return np.setdiff1d(np.flatnonzero(np.isin(kinds, kinds[rows])), rows)


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
