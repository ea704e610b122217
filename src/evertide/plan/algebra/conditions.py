"""What a join's condition says: which columns must be equal, and whether it says more.

A key must be a column, as state is kept by columns: where the condition compares expressions, the join's inputs get a
column for each, which the join's output leaves out again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.scala import sequence
from evertide.plan.catalyst.walk import kind

__all__ = ["Keys", "build_key_condition", "find_equal_keys", "find_not_in_key"]


@dataclass(frozen=True, slots=True)
class Keys:
    """Pairs of attributes in Catalyst; `left` and `right` are the columns that the inputs have to be given first."""

    pairs: tuple[tuple[Any, Any], ...]
    is_null_safe: tuple[bool, ...]
    has_more: bool
    left: tuple[Any, ...]
    right: tuple[Any, ...]


def find_equal_keys(catalyst: Catalyst, condition: Any | None, left: Any, right: Any) -> Keys:
    """The keys in `condition` of a join of these two operators."""
    pairs, null_safe, has_more = [], [], False
    added: tuple[list[Any], list[Any]] = ([], [])
    for part in _split_conjuncts(condition):
        sides = _match_sides(part, left, right)
        if sides is None or any(catalyst.is_collated(side.dataType()) for side in sides):
            has_more = True
            continue
        pairs.append(tuple(_add_column(catalyst, side, columns) for side, columns in zip(sides, added, strict=True)))
        null_safe.append(kind(part) == "EqualNullSafe")
    return Keys(tuple(pairs), tuple(null_safe), has_more, tuple(added[0]), tuple(added[1]))


def build_key_condition(catalyst: Catalyst, keys: Keys) -> Any:
    """The condition that says that all keys are equal, and nothing more."""
    found = None
    for (left, right), is_null_safe in zip(keys.pairs, keys.is_null_safe, strict=True):
        equal = catalyst.expression("EqualNullSafe" if is_null_safe else "EqualTo", left, right)
        found = equal if found is None else catalyst.expression("And", found, equal)
    return found


def find_not_in_key(condition: Any | None, left: Any, right: Any) -> tuple[Any, Any] | None:
    """Of `a = b OR (a = b) IS NULL`, which is how Spark writes NOT IN: a and b."""
    if condition is None or kind(condition) != "Or":
        return None
    parts = sequence(condition.children())
    equal = next((part for part in parts if kind(part) == "EqualTo"), None)
    unknown = next((part for part in parts if kind(part) == "IsNull"), None)
    if equal is None or unknown is None or not unknown.child().semanticEquals(equal):
        return None
    return _match_sides(equal, left, right)


def _split_conjuncts(condition: Any | None) -> Iterator[Any]:
    if condition is None:
        return
    if kind(condition) == "And":
        for child in sequence(condition.children()):
            yield from _split_conjuncts(child)
    else:
        yield condition


def _match_sides(part: Any, left: Any, right: Any) -> tuple[Any, Any] | None:
    """Of an equality of something of the left with something of the right: both, in this order."""
    if kind(part) not in ("EqualTo", "EqualNullSafe"):
        return None
    a, b = sequence(part.children())
    if _is_of(a, left) and _is_of(b, right):
        return a, b
    if _is_of(b, left) and _is_of(a, right):
        return b, a
    return None


def _is_of(expression: Any, side: Any) -> bool:
    references = expression.references()
    return bool(references.size() > 0 and references.subsetOf(side.outputSet()))


def _add_column(catalyst: Catalyst, side: Any, columns: list[Any]) -> Any:
    if kind(side) == "AttributeReference":
        return side
    columns.append(catalyst.alias(side, "key"))
    return columns[-1].toAttribute()
