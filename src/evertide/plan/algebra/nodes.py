"""The nodes of Evertide's plan: what a view computes, as a tree of eleven kinds of operators.

Each node has its Catalyst operator (`jvm`, over the Catalyst operators of its children), its output attributes, and as
plain values what the engine needs to maintain it. Nodes are created when a view is declared, and are immutable.
Attributes are identified by Catalyst's ids, which are unique in a process; nothing that is stored depends on them.

    Scan        a table or materialized view of the pipeline
    Constant    rows that are part of the query
    Map         columns computed from each row
    Filter      rows that meet a condition
    Expand      each row several times, in several forms (GROUPING SETS, hopping windows)
    Generate    each row once per element (explode)
    Union       the rows of all inputs
    Join        any kind
    Aggregate   a row per group
    Window      each row with the values of window functions over its partition
    TopK        the first rows of all
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Attribute:
    id: int
    name: str
    type: str
    """Spark's JSON form of the data type."""
    nullable: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanNode:
    jvm: Any
    output: tuple[Attribute, ...]
    children: tuple[PlanNode, ...] = ()
    passed: dict[int, int] = field(default_factory=dict)
    """Attributes that are passed through from the only child: the id in the output to the id in the child."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(attribute.id for attribute in self.output)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(PlanNode):
    collection: str
    unique: tuple[int, ...] = ()
    """The attributes of the table's key; empty if it has none."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ConstantRows(PlanNode):
    @property
    def kind(self) -> str:
        """Fingerprints contain this name, so it must not change."""
        return "Constant"


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(PlanNode):
    is_rename_only: bool = False
    """Whether the Map only selects and renames columns."""
    is_copy: bool = False
    """Whether the Map replaces a part of the plan that equals its child (`evertide.plan.algebra.sharing`)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(PlanNode):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Expand(PlanNode):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Generate(PlanNode):
    pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(PlanNode):
    pass


class JoinType(StrEnum):
    """A cross join is an INNER join without keys."""

    INNER = "Inner"
    LEFT_OUTER = "LeftOuter"
    RIGHT_OUTER = "RightOuter"
    FULL_OUTER = "FullOuter"
    LEFT_SEMI = "LeftSemi"
    LEFT_ANTI = "LeftAnti"
    EXISTENCE = "Existence"
    LEFT_SINGLE = "LeftSingle"


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(PlanNode):
    join: JoinType
    keys: tuple[tuple[int, int], ...]
    """Pairs of attributes, left and right, that must be equal."""
    is_null_safe: tuple[bool, ...]
    """Per pair: whether NULL equals NULL."""
    has_more: bool
    """Whether the condition has more parts than the equality of the keys."""


class EvalMode(StrEnum):
    """Catalyst's `EvalMode`: the effect of an overflow."""

    ANSI = "ANSI"
    """An error."""
    TRY = "TRY"
    """NULL."""
    LEGACY = "LEGACY"
    """The number wraps around."""


@dataclass(frozen=True, slots=True)
class Function:
    """An additive aggregate function: a delta can add values and take them back."""

    name: str
    """The name of its class in Catalyst."""
    arguments: tuple[int, ...]
    """Attributes of the child."""
    condition: int | None
    """The attribute of the child with the condition of FILTER."""
    mode: EvalMode
    buffer: tuple[Attribute, ...]
    """Catalyst's aggregation buffer, from which it computes the result."""

    @property
    def is_extreme(self) -> bool:
        return self.name in ("Min", "Max")


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(PlanNode):
    """If additive, it outputs keys and buffers, from which a Map above computes the results. Otherwise Catalyst
    computes the results from the rows of each group."""

    keys: tuple[int, ...]
    """Attributes of the child."""
    names: tuple[str, ...] = ()
    """What the aggregate computes, for messages."""
    functions: tuple[Function, ...] = ()
    is_additive: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(PlanNode):
    partition: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class TopK(PlanNode):
    limit: int | None
    offset: int
    first: TopK | None = None
    """The same TopK with a larger limit: the rows to keep, with the reserve."""


def walk(node: PlanNode) -> Iterator[PlanNode]:
    """Parents first."""
    yield node
    for child in node.children:
        yield from walk(child)
