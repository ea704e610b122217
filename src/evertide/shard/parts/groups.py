"""Reading one group of parts (`evertide.shard.parts.split`): the rows that are there, without all of them in memory.

A plain group goes part by part. Any other sums up what was added and what was taken away: only rows that share a value
with something that was taken away, in one column, need to be summed up; the others were only added. So the parts that
take away are read first, the others go by, and only the few that may meet are held. The column is one whose values are
equal if and only if they are the same: floats are not, as NaN is no value's equal, and -0.0 is 0.0's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF, expanded, net
from evertide.shard.parts.part import Part
from evertide.shard.parts.split import Group, Span

__all__ = ["content_rows", "inside"]

Changes = Callable[[Part], pa.Table]
"""The changes of a part, cut to the rows that are asked for, with `__diff`, the columns told and the one to meet by."""


def content_rows(
    group: Group, changes: Changes, columns: Sequence[str], *, by: str | None, where: str
) -> Iterator[pa.Table]:
    """These columns, each row as often as it is there, in pieces. A count below zero would be damage, and is said."""
    told = [*columns, DIFF]
    if group.is_plain:
        for part in group.parts:
            yield from expanded(changes(part).select(told), where)
        return
    taking = [changes(part) for part in group.parts if part.retractions]
    others = (changes(part) for part in group.parts if not part.retractions)
    if by is None:
        rest = [*taking, *others]
    else:
        taken = pc.unique(pa.concat_tables([one.filter(pc.less(one[DIFF], 0)) for one in taking])[by])
        rest = []
        for each in chain(taking, others):
            may_meet = pc.is_in(each[by], value_set=taken)
            yield from expanded(each.filter(pc.invert(may_meet)).select(told), where)
            rest.append(each.filter(may_meet))
    yield from expanded(net(pa.concat_tables(rest).select(told), where, is_sorted=False), where)


def inside(column: Any, span: Span) -> Any:
    """Which values of a column lie in a span."""
    ends = []
    if span.low is not None:
        ends.append(pc.greater_equal(column, _scalar(span.low, column.type)))
    if span.high is not None:
        ends.append(pc.less(column, _scalar(span.high, column.type)))
    found = ends[0] if len(ends) == 1 else pc.and_(*ends)
    return found if span.low is not None else pc.or_kleene(found, pc.is_null(column))


def _scalar(end: Any, kind: Any) -> Any:
    """The end of a span as a value of the column; times are integers in its unit."""
    if pa.types.is_date32(kind):
        return pa.scalar(end, pa.int32()).cast(kind)
    return pa.scalar(end, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.scalar(end, kind)
