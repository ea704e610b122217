"""Forms of a fragment with one outer join: parts of its rows that add up to the whole.

    WHOLE         the fragment as it is
    MATCHED       the outer join as an inner join
    LEFT_ALONE    only the rows of the left side without a partner, NULL in the columns of the right side
    RIGHT_ALONE   the same for the right side

A LEFT JOIN is MATCHED and LEFT_ALONE, a RIGHT JOIN is MATCHED and RIGHT_ALONE, and a FULL JOIN is all three. All
operators above it must be linear, so that their results add up as well: `evertide.flow.linear` checks that.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.scala import optional, sequence
from evertide.plan.catalyst.walk import kind

__all__ = ["Form", "rewrite_to_form"]

_OUTER = frozenset(("LeftOuter", "RightOuter", "FullOuter"))


class Form(Enum):
    WHOLE = "whole"
    MATCHED = "matched"
    LEFT_ALONE = "left alone"
    RIGHT_ALONE = "right alone"


def rewrite_to_form(catalyst: Catalyst, jvm: Any, form: Form) -> Any:
    """Rewrite a Catalyst plan to another form: replace its only outer join."""
    if kind(jvm) == "Join" and kind(jvm.joinType()) in _OUTER:
        return _replace_join(catalyst, jvm, form)
    return catalyst.with_children(jvm, [rewrite_to_form(catalyst, child, form) for child in sequence(jvm.children())])


def _replace_join(catalyst: Catalyst, join: Any, form: Form) -> Any:
    left, right, condition = join.left(), join.right(), optional(join.condition())
    if form is Form.MATCHED:
        return catalyst.join(left, right, "Inner", condition)
    if form is Form.LEFT_ALONE:
        alone = catalyst.join(left, right, "LeftAnti", condition)
        return catalyst.project([*sequence(left.output()), *_make_nulls(catalyst, right)], alone)
    alone = catalyst.join(right, left, "LeftAnti", condition)
    return catalyst.project([*_make_nulls(catalyst, left), *sequence(right.output())], alone)


def _make_nulls(catalyst: Catalyst, side: Any) -> list[Any]:
    """The columns of a side, all NULL, under their own ids."""
    return [
        catalyst.alias(catalyst.expression("Literal", None, column.dataType()), column.name(), column.exprId())
        for column in sequence(side.output())
    ]
