"""The groups of an additive aggregate with the words of a range, from what the tasks found in their rows.

Sums of a group are added up in pairs, so that each is decoded and encoded a few times, whatever their number. The
result does not depend on the order, as sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.aggregates.accumulators import Accumulators
from evertide.flow.aggregates.extremes import GROUP, VALUE
from evertide.flow.aggregates.group_plan import GroupPlan
from evertide.flow.aggregates.groups import group_rows
from evertide.flow.leaf_rows import add_sign
from evertide.flow.state.block import make_block, make_table
from evertide.flow.wide.outlets import Attempt, Outlet, Outlets, write_blocks
from evertide.flow.wide.pieces import SortedRun, WordRange, read_range
from evertide.rows.columns import Longs, to_array
from evertide.rows.conform import conform_table


@dataclass(frozen=True, slots=True)
class GroupsTask:
    plan: GroupPlan
    states: tuple[SortedRun, ...]
    range: WordRange
    outlets: tuple[Outlet, ...]
    """Of the aggregate's rows."""


@dataclass(frozen=True, slots=True)
class FoundGroups:
    state: SortedRun | None
    written: list[Any]
    """Per outlet."""


def compute_groups(task: GroupsTask, attempt: Attempt) -> FoundGroups:
    plan = task.plan
    outlets = Outlets(task.outlets, attempt)
    block = read_range(task.states, plan.stored_schema, task.range, attempt.tools.blob)
    keys, state = _add_up(plan, make_table([] if block is None else [block], plan.stored_schema))
    outlets.take(add_sign(plan.finish(keys, state, plan.find_present(state)), 1))
    stored = add_sign(pa.Table.from_arrays([*keys.columns, *state.columns], schema=plan.stored_schema), 1)
    sorted_groups = make_block(stored, plan.stored_schema, plan.keys, plan.name)
    entries = write_blocks([sorted_groups], plan.name, plan.stored_schema, attempt)
    return FoundGroups(SortedRun(entries, ()) if entries else None, outlets.finish())


def _add_up(plan: GroupPlan, partial: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The keys and the state of each group, once. Without keys there is one group, even without rows."""
    if not plan.keys and not partial.num_rows:
        return plan.key_schema.empty_table(), plan.make_zero()
    keys = partial.select(list(plan.keys))
    numbers, first = group_rows(keys) if plan.keys else (np.zeros(partial.num_rows, np.int64), np.zeros(1, np.int64))
    states = pa.Table.from_arrays(partial.select(plan.sums.state.names).columns, schema=plan.sums.state)
    best = [
        _find_best(plan, at, to_array(partial.column(f"x{at}")), numbers, len(first))
        for at in range(len(plan.extremes))
    ]
    state = plan.make_state(add_up_states(plan.sums, states, numbers), best)
    return conform_table(keys.take(pa.array(first)), plan.key_schema) if plan.keys else keys, state


def _find_best(plan: GroupPlan, at: int, found: Any, numbers: Longs, count: int) -> Any:
    """The extreme of each group among those of its tasks."""
    rows = np.flatnonzero(np.asarray(found.is_valid()))
    columns = [found.take(pa.array(rows)), pa.array(numbers[rows])]
    values = add_sign(pa.Table.from_arrays(columns, names=[VALUE, GROUP]), 1)
    return plan.find_extremes(values, (at,), count)[0]


def add_up_states(sums: Accumulators, states: pa.Table, numbers: Longs) -> pa.Table:
    """The sum of the states of each group, in the order of the numbers of the groups, which have no gaps."""
    order = np.argsort(numbers, kind="stable")
    states, numbers = states.take(pa.array(order)), numbers[order]
    while len(numbers) > 1 and (numbers[1:] == numbers[:-1]).any():
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        lengths = np.diff(np.append(starts, len(numbers)))
        places = np.arange(len(numbers)) - np.repeat(starts, lengths)
        has_partner = places + 1 < np.repeat(lengths, lengths)
        left = np.flatnonzero((places % 2 == 0) & has_partner)
        alone = np.flatnonzero((places % 2 == 0) & ~has_partner)
        merged = sums.merge(states.take(pa.array(left)), states.take(pa.array(left + 1)))
        rows = np.concatenate((left, alone))
        order = np.argsort(rows, kind="stable")
        states = pa.concat_tables([merged, states.take(pa.array(alone))]).take(pa.array(order))
        numbers = numbers[rows[order]]
    return states
