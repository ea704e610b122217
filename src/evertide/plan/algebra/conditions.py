"""Splits the condition of a join into pairs of columns that must be equal, and the rest.

State is keyed by columns. Where the condition compares expressions, each becomes a column of the join's input, which
the join's output drops again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list


@dataclass(frozen=True, slots=True)
class Keys:
    """Pairs of Catalyst attributes; `left` and `right` are columns to add to the inputs first."""

    pairs: tuple[tuple[Any, Any], ...]
    is_null_safe: tuple[bool, ...]
    has_more: bool
    left: tuple[Any, ...]
    right: tuple[Any, ...]


def find_equal_keys(catalyst: Catalyst, condition: Any | None, left: Any, right: Any) -> Keys:
    """The keys in the condition of a join of two Catalyst operators."""
    pairs, null_safe, has_more = [], [], False
    added: tuple[list[Any], list[Any]] = ([], [])
    for part in _split_conjuncts(condition):
        sides = _match_sides(part, left, right)
        if sides is None or any(catalyst.is_collated(side.dataType()) for side in sides):
            has_more = True
            continue
        pairs.append(tuple(_add_column(catalyst, side, columns) for side, columns in zip(sides, added, strict=True)))
        null_safe.append(get_kind(part) == "EqualNullSafe")
    return Keys(tuple(pairs), tuple(null_safe), has_more, tuple(added[0]), tuple(added[1]))


def build_key_condition(catalyst: Catalyst, pairs: Sequence[tuple[Any, Any]], null_safe: Sequence[bool]) -> Any | None:
    """The condition that the two attributes of each pair are equal; None without pairs."""
    found = None
    for (left, right), is_null_safe in zip(pairs, null_safe, strict=True):
        equal = catalyst.expression("EqualNullSafe" if is_null_safe else "EqualTo", left, right)
        found = equal if found is None else catalyst.expression("And", found, equal)
    return found


def find_not_in_key(condition: Any | None, left: Any, right: Any) -> tuple[Any, Any] | None:
    """a and b of `a = b OR (a = b) IS NULL`, which is how Spark plans NOT IN; None for other conditions."""
    if condition is None or get_kind(condition) != "Or":
        return None
    parts = read_list(condition.children())
    equal = next((part for part in parts if get_kind(part) == "EqualTo"), None)
    unknown = next((part for part in parts if get_kind(part) == "IsNull"), None)
    if equal is None or unknown is None or not unknown.child().semanticEquals(equal):
        return None
    return _match_sides(equal, left, right)


def _split_conjuncts(condition: Any | None) -> Iterator[Any]:
    if condition is None:
        return
    if get_kind(condition) == "And":
        for child in read_list(condition.children()):
            yield from _split_conjuncts(child)
    else:
        yield condition


def _match_sides(part: Any, left: Any, right: Any) -> tuple[Any, Any] | None:
    """The two sides of an equality between the join's inputs, left first; None if it is not one."""
    if get_kind(part) not in ("EqualTo", "EqualNullSafe"):
        return None
    a, b = read_list(part.children())
    if _is_of(a, left) and _is_of(b, right):
        return a, b
    if _is_of(b, left) and _is_of(a, right):
        return b, a
    return None


def _is_of(expression: Any, side: Any) -> bool:
    references = expression.references()
    return bool(references.size() > 0 and references.subsetOf(side.outputSet()))


def _add_column(catalyst: Catalyst, side: Any, columns: list[Any]) -> Any:
    if get_kind(side) == "AttributeReference":
        return side
    columns.append(catalyst.alias(side, "key"))
    return columns[-1].toAttribute()
