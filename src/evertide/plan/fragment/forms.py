"""Forms of a fragment with one outer join: parts of its rows that add up to the whole.

    WHOLE         the fragment as it is
    MATCHED       the outer join as an inner join
    UNMATCHED_LEFT    only the rows of the left side without a partner, NULL in the columns of the right side
    UNMATCHED_RIGHT   the same for the right side

A LEFT JOIN is MATCHED and UNMATCHED_LEFT, a RIGHT JOIN is MATCHED and UNMATCHED_RIGHT, and a FULL JOIN is all three.
All operators above it must be linear, so that their results add up as well: `evertide.flow.linear` checks that.

A form is made of the optimized plan, and is not optimized itself. The optimizer would raise errors that the query does
not have: it evaluates `10 / coalesce(s.c, 0)` where s.c is always NULL, even if there is no such row, and it evaluates
a condition of ON that reads one side for rows of that side without a partner.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from evertide.plan.algebra.nodes import JoinType
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list, read_option

_OUTER = frozenset((JoinType.LEFT_OUTER, JoinType.RIGHT_OUTER, JoinType.FULL_OUTER))


class Form(Enum):
    WHOLE = "whole"
    MATCHED = "matched"
    UNMATCHED_LEFT = "unmatched left"
    UNMATCHED_RIGHT = "unmatched right"


def find_outer_joins(jvm: Any) -> list[JoinType]:
    """The types of the outer joins of a Catalyst plan."""
    own = [JoinType(get_kind(jvm.joinType()))] if _is_outer_join(jvm) else []
    return own + [found for child in read_list(jvm.children()) for found in find_outer_joins(child)]


def rewrite_to_form(catalyst: Catalyst, jvm: Any, form: Form) -> Any:
    """Rewrite an optimized Catalyst plan to another form: replace its only outer join."""
    if _is_outer_join(jvm):
        return _replace_join(catalyst, jvm, form)
    return catalyst.replace_children(
        jvm, [rewrite_to_form(catalyst, child, form) for child in read_list(jvm.children())]
    )


def _is_outer_join(jvm: Any) -> bool:
    return get_kind(jvm) == "Join" and get_kind(jvm.joinType()) in _OUTER


def _replace_join(catalyst: Catalyst, join: Any, form: Form) -> Any:
    left, right, condition = join.left(), join.right(), read_option(join.condition())
    if form is Form.MATCHED:
        return catalyst.join(left, right, JoinType.INNER, condition)
    if form is Form.UNMATCHED_LEFT:
        unmatched = catalyst.join(left, right, JoinType.LEFT_ANTI, condition)
        return catalyst.project([*read_list(left.output()), *_make_nulls(catalyst, right)], unmatched)
    unmatched = catalyst.join(right, left, JoinType.LEFT_ANTI, condition)
    return catalyst.project([*_make_nulls(catalyst, left), *read_list(right.output())], unmatched)


def _make_nulls(catalyst: Catalyst, side: Any) -> list[Any]:
    """The columns of a side, all NULL, under their own ids."""
    return [
        catalyst.alias(catalyst.expression("Literal", None, column.dataType()), column.name(), column.exprId())
        for column in read_list(side.output())
    ]
