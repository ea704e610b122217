"""Our plan: what a view computes, as a tree of a dozen kinds of operators.

Each node holds its Catalyst operator (`jvm`, over the Catalyst operators of its children), the attributes that it puts
out, and what the engine needs to know to maintain it, as plain values. Nodes are made once, when a view is declared,
and never change. Attributes are known by Catalyst's id, unique in a process; nothing that is stored depends on it.

    Scan        a table or materialized view of the pipeline
    Constant    rows that are part of the query
    Map         columns computed from each row
    Filter      rows that meet a condition
    Expand      each row several times, in several forms (GROUPING SETS, hopping windows)
    Generate    each row once per element (explode)
    Union       the rows of all inputs
    Join        any kind
    Aggregate   a row per group
    Window      each row with what its partition says about it
    TopK        the first rows of all
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Aggregate",
    "Attribute",
    "Constant",
    "Expand",
    "Filter",
    "Function",
    "Generate",
    "Join",
    "Map",
    "Node",
    "Scan",
    "TopK",
    "Union",
    "Window",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Attribute:
    id: int
    name: str
    type: str
    """Spark's JSON form of the data type."""
    nullable: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    jvm: Any
    output: tuple[Attribute, ...]
    children: tuple[Node, ...] = ()
    passed: dict[int, int] = field(default_factory=dict)
    """Which attributes of the output are an attribute of the (only) child as it is: by id, from above to below."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(attribute.id for attribute in self.output)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(Node):
    collection: str
    unique: tuple[int, ...] = ()
    """Attributes of which no two rows share the values; empty if unknown."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Constant(Node):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Node):
    is_moves_only: bool = False
    """Whether it only takes, leaves out and renames columns."""
    is_copy: bool = False
    """Whether it stands for a part of the plan that is the same as its child (`evertide.plan.algebra.sharing`)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Node):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Expand(Node):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Generate(Node):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Node):
    join: str
    """Inner, LeftOuter, RightOuter, FullOuter, LeftSemi, LeftAnti, Existence or LeftSingle; Cross is Inner."""
    keys: tuple[tuple[int, int], ...]
    """Pairs of attributes, left and right, that the condition wants equal."""
    is_null_safe: tuple[bool, ...]
    """Per pair: whether NULL equals NULL."""
    has_more: bool
    """Whether the condition says more than that the keys are equal."""


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate function that has an inverse: what is added can be taken back."""

    name: str
    """The name of its class in Catalyst."""
    arguments: tuple[int, ...]
    """Attributes of the child."""
    condition: int | None
    """An attribute of the child that says which rows count (FILTER)."""
    mode: str
    """What an overflow does: ANSI (an error), TRY (NULL) or LEGACY (wraps around)."""
    buffer: tuple[Attribute, ...]
    """What Catalyst computes the result from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Node):
    """With `functions`: the groups as keys and buffers, and a Map above makes the result of them. Without: computed by
    Catalyst, from the rows of each group."""

    keys: tuple[int, ...]
    """Attributes of the child."""
    names: tuple[str, ...] = ()
    """What it computes, for people."""
    functions: tuple[Function, ...] = ()
    is_additive: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(Node):
    partition: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class TopK(Node):
    limit: int | None
    offset: int
    first: TopK | None = None
    """The first rows in order, and more of them than are wanted, so that some may go before others must be found."""


def walk(node: Node) -> Iterator[Node]:
    """Parents first."""
    yield node
    for child in node.children:
        yield from walk(child)
