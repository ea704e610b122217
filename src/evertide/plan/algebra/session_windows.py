"""Adds the session of each row as a column, so that a group by session windows is a group by a column.

Spark merges sessions while it aggregates the rows in order of time, so sums of floats would depend on the order of
rows with equal times. Here window functions compute the session of each row first, over the rows with the same other
keys, in order of time:

    reached     the latest end of the rows before; a row that starts later begins a session
    first       the latest start, up to this row, of a row that begins a session
    last        `reached` at the row that begins the next session; for the last session, the latest end of all rows

`first` and `last` are equal for all rows of a session, in whatever order rows with equal times come.
"""

from __future__ import annotations

from typing import Any, Protocol

from evertide.plan.algebra.aggregates import make_map
from evertide.plan.algebra.nodes import PlanNode
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list

_MARK = "spark.sessionWindow"


class MakeWindow(Protocol):
    def __call__(self, jvm: Any, order: list[Any], child: PlanNode, *, has_ties: bool) -> PlanNode: ...


def find_session_key(aggregate: Any) -> Any | None:
    """The key of a Catalyst Aggregate that is a session window; None if it has none."""
    keys = read_list(aggregate.groupingExpressions())
    return next((key for key in keys if get_kind(key) == "AttributeReference" and key.metadata().contains(_MARK)), None)


def assign_sessions(
    catalyst: Catalyst, session: Any, keys: list[Any], child: PlanNode, window: MakeWindow
) -> tuple[PlanNode, Any]:
    """Add the session to the rows of `child`: the node, and the column. `keys` are the other keys."""
    make = _WindowColumns(catalyst, keys)
    start, end = (catalyst.alias(catalyst.get_field(session, at), name) for at, name in enumerate(("start", "end")))
    node: PlanNode = make_map(catalyst, [*read_list(child.jvm.output()), start, end], child)
    at, until = start.toAttribute(), end.toAttribute()
    order = [catalyst.make_ascending(at)]

    reached = make.make_column("Max", until, order, make.first, catalyst.literal(-1))
    node = window(make.make_window([reached], order, node), order, node, has_ties=False)
    is_within = catalyst.expression("LessThanOrEqual", at, reached.toAttribute())
    begins = catalyst.alias(make.make_null_if(is_within, at), "begins")
    closes = catalyst.alias(make.make_null_if(is_within, reached.toAttribute()), "closes")
    node = make_map(catalyst, [*read_list(node.jvm.output()), begins, closes], node)

    first = make.make_column("Max", begins.toAttribute(), order, make.first, make.current)
    closed = make.make_column("Min", closes.toAttribute(), order, catalyst.literal(1), make.last)
    latest = make.make_column("Max", until, order, make.first, make.last)
    node = window(make.make_window([first, closed, latest], order, node), order, node, has_ties=False)
    last = catalyst.expression("Coalesce", catalyst.seq([closed.toAttribute(), latest.toAttribute()]))
    whole = catalyst.alias(make.build_session(session, [first.toAttribute(), last]), session.name())
    node = make_map(catalyst, [*read_list(child.jvm.output()), whole], node)
    return node, whole.toAttribute()


class _WindowColumns:
    def __init__(self, catalyst: Catalyst, keys: list[Any]) -> None:
        self._catalyst = catalyst
        self._keys = catalyst.seq(keys)
        path = "org.apache.spark.sql.catalyst.expressions"
        self.first, self.current, self.last, self._rows = (
            catalyst.companion(f"{path}.{name}")
            for name in ("UnboundedPreceding", "CurrentRow", "UnboundedFollowing", "RowFrame")
        )

    def make_column(self, function: str, value: Any, order: list[Any], lower: Any, upper: Any) -> Any:
        """A window function over the rows of a partition from `lower` to `upper`, as a column."""
        make = self._catalyst
        frame = make.expression("SpecifiedWindowFrame", self._rows, lower, upper)
        spec = make.expression("WindowSpecDefinition", self._keys, make.seq(order), frame)
        found = make.aggregate_expression(make.expression(f"aggregate.{function}", value))
        return make.alias(make.expression("WindowExpression", found, spec), function.lower())

    def make_window(self, columns: list[Any], order: list[Any], child: PlanNode) -> Any:
        return self._catalyst.window(columns, self._keys, order, child.jvm)

    def make_null_if(self, condition: Any, value: Any) -> Any:
        """NULL if the condition is true; the value if it is false or unknown."""
        nothing = self._catalyst.companion("org.apache.spark.sql.catalyst.expressions.Literal")
        return self._catalyst.expression("If", condition, nothing.create(None, value.dataType()), value)

    def build_session(self, session: Any, values: list[Any]) -> Any:
        """A struct of the session's type."""
        named: list[Any] = []
        for field, value in zip(session.dataType().fields(), values, strict=True):
            known = value if field.nullable() else self._catalyst.expression("KnownNotNull", value)
            named += [self._catalyst.literal(field.name()), known]
        return self._catalyst.expression("CreateNamedStruct", self._catalyst.seq(named))
