"""Read one group of parts (`evertide.shard.parts.split`) without holding all of its rows in memory.

A plain group is read part by part. In any other group additions and retractions must be added up. Only rows that share
a value in one column with a retraction can be affected, so the retractions are read first, the other parts stream by,
and only rows that may meet a retraction are held. The column must have exact equality: not a float, because NaN equals
no value and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF, consolidate_delta, expand_in_tables
from evertide.shard.parts.part import Part
from evertide.shard.parts.split import Group, Span

Changes = Callable[[Part], pa.Table]
"""The changes of a part, cut to the requested rows, with `__diff`, the requested columns and the one to match by."""


def read_group(
    group: Group, changes: Changes, columns: Sequence[str], *, by: str | None, where: str
) -> Iterator[pa.Table]:
    """Yield these columns in tables, each row as often as its count. No row has a negative count."""
    names = [*columns, DIFF]
    if group.only_adds:
        for part in group.parts:
            yield from expand_in_tables(changes(part).select(names), where)
        return
    retracting = [changes(part) for part in group.parts if part.retractions]
    others = (changes(part) for part in group.parts if not part.retractions)
    if by is None:
        rest = [*retracting, *others]
    else:
        retracted = pc.unique(pa.concat_tables([one.filter(pc.less(one[DIFF], 0)) for one in retracting])[by])
        rest = []
        for each in chain(retracting, others):
            may_meet = pc.is_in(each[by], value_set=retracted)
            yield from expand_in_tables(each.filter(pc.invert(may_meet)).select(names), where)
            rest.append(each.filter(may_meet))
    yield from expand_in_tables(consolidate_delta(pa.concat_tables(rest).select(names), where, is_sorted=False), where)


def is_inside(column: Any, span: Span) -> Any:
    """Return which values of a column are in a span."""
    ends = []
    if span.low is not None:
        ends.append(pc.greater_equal(column, _scalar(span.low, column.type)))
    if span.high is not None:
        ends.append(pc.less(column, _scalar(span.high, column.type)))
    found = ends[0] if len(ends) == 1 else pc.and_(*ends)
    return found if span.low is not None else pc.or_kleene(found, pc.is_null(column))


def _scalar(end: Any, kind: Any) -> Any:
    """The end of a span as a value of the column's type; times are integers in its unit."""
    if pa.types.is_date32(kind):
        return pa.scalar(end, pa.int32()).cast(kind)
    return pa.scalar(end, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.scalar(end, kind)
