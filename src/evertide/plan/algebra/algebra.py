"""Converts Catalyst's optimized plan of a view to Evertide's own plan.

In the optimized plan, correlated subqueries are already joins, EXCEPT and INTERSECT are joins and aggregates, and
GROUPING SETS is an Expand. `Algebra` does the rest, from the leaves up:

1. Uncorrelated scalar subqueries, which are still expressions, become joins with a single row.
2. Sorting, hints and partitioning are dropped, since a collection has no order; a Sort below a LIMIT becomes a TopK.
3. Ties are broken by all columns (`evertide.plan.algebra.order`).
4. Session windows become a column with the session of each row (`evertide.plan.algebra.session_windows`).
5. The keys of joins and groups become columns (`evertide.plan.algebra.conditions`, `evertide.plan.algebra.aggregates`).

An operator that is not known here is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.algebra.aggregates import (
    make_aggregate,
    make_map,
    move_keys_below,
    project_above_aggregate,
    refuse_collated,
    replace_by_columns,
    substitute,
    to_attribute,
)
from evertide.plan.algebra.conditions import build_key_condition, find_equal_keys, find_not_in_key
from evertide.plan.algebra.deduplicate import rewrite_deduplicates
from evertide.plan.algebra.distinct import undo_distinct_rewrite
from evertide.plan.algebra.nodes import (
    Aggregate,
    ConstantRows,
    Expand,
    Filter,
    Generate,
    Join,
    JoinType,
    Map,
    PlanNode,
    Scan,
    TopK,
    Union,
    Window,
    walk,
)
from evertide.plan.algebra.order import make_total_order
from evertide.plan.algebra.session_windows import assign_sessions, find_session_key
from evertide.plan.algebra.sharing import SharedParts
from evertide.plan.catalyst.canonical import CanonicalForms
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_parts
from evertide.plan.script.catalog import Query, SparkCatalog

_DROPPED = frozenset(
    ("Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "WindowGroupLimit", "ResolvedHint")
)
_CONSTANTS = frozenset(("LocalRelation", "OneRowRelation", "Range"))
_LIMITS = frozenset(("GlobalLimit", "LocalLimit", "Offset"))
_PYTHON = frozenset(("BatchEvalPython", "ArrowEvalPython"))
_COSTLY = frozenset(("Join", "Aggregate", "Window"))
"""Operators that are worth computing once if they occur twice."""
_TOP_FACTOR, _TOP_MORE = 2, 64
"""A TopK keeps factor * (limit + offset) + more rows: the rows beyond the limit are the reserve."""
_ROWS_MAX = (1 << 31) - 1
"""The largest LIMIT of Spark."""
_EXISTENCE = frozenset((JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE))
_JOINS: dict[str, JoinType] = {
    **{str(each): each for each in JoinType if each is not JoinType.EXISTENCE},
    "Cross": JoinType.INNER,
    "ExistenceJoin": JoinType.EXISTENCE,
}


class Algebra:
    def __init__(self, catalyst: Catalyst, catalog: SparkCatalog) -> None:
        self._catalyst = catalyst
        self._catalog = catalog
        self._where = ""
        self._sharing: SharedParts | None = None
        """Of the view that is being planned."""

    def plan(self, query: Query) -> PlanNode:
        """Plan a view whose query was analyzed and not refused."""
        self._where = f"{query.where}, view {query.name!r}"
        self._sharing = SharedParts(self._catalyst, CanonicalForms(self._catalog.session, self._where))
        chosen = rewrite_deduplicates(self._catalyst, query.analyzed, self._where)
        optimized = query.optimized if chosen is None else self._catalyst.optimize(chosen)
        plan = self._restore_output(self._convert(optimized), optimized)
        self._refuse_subqueries(plan)
        return plan

    def _refuse_subqueries(self, plan: PlanNode) -> None:
        """Refuse subqueries that are left in expressions: they would read the catalog's empty tables."""
        sums = [node for node in walk(plan) if isinstance(node, Aggregate) and node.is_additive]
        tops = {
            id(node): node for node in (plan, *(node.children[0] for node in sums))
        }  # an additive aggregate hides the plan below it
        left = next((found for node in tops.values() for found in read_list(node.jvm.subqueriesAll())), None)
        if left is not None:
            why = f"the subquery {left.simpleString(80)} cannot be maintained where it is; write it as a join"
            raise InvalidInput(where=self._where, why=why)

    def _convert(self, jvm: Any) -> PlanNode:
        name = get_kind(jvm)
        if name == "Aggregate":
            jvm = undo_distinct_rewrite(self._catalyst, jvm)
        if name in _DROPPED:
            return self._convert(jvm.child())
        if name in _LIMITS:
            return self._convert_limit(jvm)
        if read_list(jvm.subqueries()):
            return self._convert_with_subqueries(jvm)
        make = self._list_makers().get(name)
        if make is None:
            why = f"the operator {name} cannot be maintained: {jvm.simpleString(80)}"
            raise InvalidInput(where=self._where, why=why)
        return self._share(make(jvm)) if name in _COSTLY else make(jvm)

    def _share(self, node: PlanNode) -> PlanNode:
        return node if self._sharing is None else self._sharing.share(node)

    def _list_makers(self) -> dict[str, Callable[[Any], PlanNode]]:
        return {
            "LogicalRDD": self._convert_scan,
            "Project": lambda jvm: make_map(self._catalyst, read_list(jvm.projectList()), self._convert(jvm.child())),
            "Filter": lambda jvm: self._convert_row_wise(jvm, Filter),
            "Generate": lambda jvm: self._convert_row_wise(jvm, Generate),
            "Expand": self._convert_expand,
            "Union": self._convert_union,
            "Join": self._convert_join,
            "Aggregate": self._convert_aggregate,
            "Window": self._convert_window,
            **dict.fromkeys(_CONSTANTS, self._convert_constant),
            **dict.fromkeys(_PYTHON, lambda jvm: self._convert_row_wise(jvm, Map)),
        }

    def _list_output(self, jvm: Any) -> tuple[Any, ...]:
        return tuple(to_attribute(attribute) for attribute in read_list(jvm.output()))

    def _replace_children(self, jvm: Any, *children: PlanNode) -> Any:
        return self._catalyst.replace_children(jvm, [child.jvm for child in children])

    def _convert_scan(self, jvm: Any) -> PlanNode:
        name = self._catalog.find_leaf(jvm)
        output = self._list_output(jvm)
        key = self._catalog.find_key(name)
        unique = tuple(attribute.id for attribute in output if attribute.name.lower() in key)
        return Scan(jvm=jvm, output=output, collection=name, unique=unique)

    def _convert_constant(self, jvm: Any) -> PlanNode:
        return ConstantRows(jvm=jvm, output=self._list_output(jvm))

    def _convert_row_wise(self, jvm: Any, node_type: type[Filter] | type[Generate] | type[Map]) -> PlanNode:
        return self._make_row_wise(jvm, node_type, self._convert(jvm.child()))

    def _make_row_wise(
        self, jvm: Any, node_type: type[Filter] | type[Generate] | type[Map], child: PlanNode
    ) -> PlanNode:
        """Put an operator that processes one row at a time, and passes some columns through, above `child`."""
        jvm = self._replace_children(jvm, child)
        output = self._list_output(jvm)
        passed = {attribute.id: attribute.id for attribute in output if attribute.id in child.ids}
        return node_type(jvm=jvm, output=output, children=(child,), passed=passed)

    def _convert_expand(self, jvm: Any) -> PlanNode:
        child = self._convert(jvm.child())
        jvm = self._replace_children(jvm, child)
        output = self._list_output(jvm)
        forms = [read_list(form) for form in read_list(jvm.projections())]
        passed = {}
        for at, attribute in enumerate(output):
            sources = {form[at].exprId().id() if get_kind(form[at]) == "AttributeReference" else -1 for form in forms}
            if len(sources) == 1 and -1 not in sources:
                passed[attribute.id] = sources.pop()
        return Expand(jvm=jvm, output=output, children=(child,), passed=passed)

    def _convert_union(self, jvm: Any) -> PlanNode:
        children = tuple(self._convert(child) for child in read_list(jvm.children()))
        jvm = self._replace_children(jvm, *children)
        return Union(jvm=jvm, output=self._list_output(jvm), children=children)

    def _convert_join(self, jvm: Any) -> PlanNode:
        left, right = self._convert(jvm.left()), self._convert(jvm.right())
        not_in = find_not_in_key(read_option(jvm.condition()), left.jvm, right.jvm)
        if not_in is not None and _find_join_type(jvm) is JoinType.LEFT_ANTI:
            return self._convert_not_in(left, right, *not_in)
        return self._make_join(jvm, left, right)

    def _convert_not_in(self, left: PlanNode, right: PlanNode, a: Any, b: Any) -> PlanNode:
        """Convert `a NOT IN (SELECT b ...)`. It keeps a row if there is no b, or if no value is NULL and no b equals a.

        The plan joins two facts about the right side (is it empty, has it a NULL), filters by them, and then does an
        anti join by key. The whole left side is read only when one of the facts changes.
        """
        make = self._catalyst
        counts = [
            make.alias(make.aggregate_expression(make.expression("aggregate.Count", make.seq([of]))), name)
            for of, name in ((make.literal(1), "rows"), (b, "values"))
        ]
        counted = make_aggregate(make, make.aggregate([], counts, right.jvm), right, self._where)
        rows, values = (count.toAttribute() for count in counts)
        is_empty = make.alias(make.expression("EqualTo", rows, make.make_long(0)), "is_empty")
        has_null = make.alias(make.expression("LessThan", values, rows), "has_null")
        facts = make_map(make, [is_empty, has_null], counted)
        known = self._make_join(make.join(left.jvm, facts.jvm, JoinType.INNER, None), left, facts)
        may_be = make.expression("And", make.expression("IsNotNull", a), make.expression("Not", has_null.toAttribute()))
        condition = make.expression("Or", is_empty.toAttribute(), may_be)
        passed = {attribute.id: attribute.id for attribute in known.output}
        kept = Filter(jvm=make.filter(condition, known.jvm), output=known.output, children=(known,), passed=passed)
        equal = make.expression("EqualTo", a, b)
        found = self._make_join(make.join(kept.jvm, right.jvm, JoinType.LEFT_ANTI, equal), kept, right)
        return make_map(make, read_list(left.jvm.output()), found)

    def _make_join(self, jvm: Any, left: PlanNode, right: PlanNode) -> PlanNode:
        keys = find_equal_keys(self._catalyst, read_option(jvm.condition()), left.jvm, right.jvm)
        wide_left, wide_right = self._add_columns(left, keys.left), self._add_columns(right, keys.right)
        join = _find_join_type(jvm)
        if join in _EXISTENCE and keys.pairs and not keys.has_more and _has_join(right):
            wide_right = self._make_distinct(wide_right, [key for _, key in keys.pairs])
            condition = build_key_condition(self._catalyst, keys.pairs, keys.is_null_safe)  # other columns are gone
            jvm = self._catalyst.map_expressions(jvm, lambda _: condition)
        jvm = self._replace_children(jvm, wide_left, wide_right)
        joined = Join(
            jvm=jvm,
            output=self._list_output(jvm),
            children=(wide_left, wide_right),
            join=join,
            keys=tuple((a.exprId().id(), b.exprId().id()) for a, b in keys.pairs),
            is_null_safe=keys.is_null_safe,
            has_more=keys.has_more,
        )
        if not keys.left and not keys.right:
            return joined
        unwanted = {column.exprId().id() for column in (*keys.left, *keys.right)}
        kept = [column for column in read_list(jvm.output()) if column.exprId().id() not in unwanted]
        return make_map(self._catalyst, kept, joined)

    def _make_distinct(self, right: PlanNode, keys: list[Any]) -> PlanNode:
        """Reduce the right side of an existence join to its distinct keys.

        Without this, each change of a row there touches all rows with its key on both sides. With it, only the first
        and the last row of a key touch the other side.
        """
        keys = list({key.exprId().id(): key for key in keys}.values())
        distinct = self._catalyst.aggregate(keys, keys, right.jvm)
        return self._share(make_aggregate(self._catalyst, distinct, right, self._where))

    def _add_columns(self, child: PlanNode, columns: tuple[Any, ...]) -> PlanNode:
        if not columns:
            return child
        return make_map(self._catalyst, [*read_list(child.jvm.output()), *columns], child)

    def _convert_aggregate(self, jvm: Any) -> PlanNode:
        session = find_session_key(jvm)
        if session is None:
            return make_aggregate(self._catalyst, jvm, self._convert(jvm.child()), self._where)
        jvm = move_keys_below(self._catalyst, jvm, lambda key: get_kind(key) != "AttributeReference")
        keys = [key for key in read_list(jvm.groupingExpressions()) if not key.semanticEquals(session)]
        child, column = assign_sessions(self._catalyst, session, keys, self._convert(jvm.child()), self._make_window)
        jvm = replace_by_columns(self._catalyst, jvm, [(session, column)], child.jvm)
        return make_aggregate(self._catalyst, jvm, child, self._where)

    def _convert_window(self, jvm: Any) -> PlanNode:
        order, child = read_list(jvm.orderSpec()), self._convert(jvm.child())
        if not order:
            order, child = self._take_order_below(jvm, child)
        node = self._make_window(jvm, order, child)
        return self._restore_output(node, jvm)

    def _make_window(self, jvm: Any, order: list[Any], child: PlanNode, *, has_ties: bool = True) -> PlanNode:
        """Build a Window over sorted rows. `has_ties`: whether the order of tied rows can show in the result.

        The rows are clustered before they are sorted. Otherwise Spark would cluster them after the Sort, and then sort
        again by the query's own columns only. Spark does the same if it has to normalize a key, so the keys of the
        clustering, the Sort and the Window are normalized here.
        """
        keys = read_list(jvm.partitionSpec())
        if any(get_kind(key) != "AttributeReference" for key in keys):
            return self._make_window(*self._move_partition_to_columns(jvm, order, keys, child), has_ties=has_ties)
        refuse_collated(self._catalyst, keys, self._where)
        partition = [self._catalyst.normalize(key) for key in keys]
        by = [*(self._catalyst.make_ascending(key) for key in partition), *order]
        total = make_total_order(self._catalyst, by, child.jvm, self._where) if has_ties else by
        ordered = self._catalyst.sort(total, self._catalyst.cluster(partition, child.jvm), is_global=False)
        operator = self._catalyst.window(
            read_list(jvm.windowExpressions()), self._catalyst.seq(partition), read_list(jvm.orderSpec()), ordered
        )
        return Window(
            jvm=operator,
            output=self._list_output(operator),
            children=(child,),
            passed={attribute.id: attribute.id for attribute in child.output},
            partition=tuple(key.exprId().id() for key in keys),
        )

    def _move_partition_to_columns(
        self, jvm: Any, order: list[Any], keys: list[Any], child: PlanNode
    ) -> tuple[Any, list[Any], PlanNode]:
        """Replace the expressions of a PARTITION BY by columns that are added to the input."""
        added = [(key, self._catalyst.alias(key, "key")) for key in keys if get_kind(key) != "AttributeReference"]
        wide = self._add_columns(child, tuple(alias for _, alias in added))
        swaps = [(key, alias.toAttribute()) for key, alias in added]

        def replace_keys(expression: Any) -> Any:
            return substitute(self._catalyst, expression, swaps)

        operator = self._catalyst.map_expressions(self._replace_children(jvm, wide), replace_keys)
        return operator, [*map(replace_keys, order)], wide

    def _restore_output(self, node: PlanNode, jvm: Any) -> PlanNode:
        """Project a node to the columns of Spark's operator, if it has others."""
        wanted = read_list(jvm.output())
        if node.ids == tuple(attribute.exprId().id() for attribute in wanted):
            return node
        return make_map(self._catalyst, wanted, node)

    def _take_order_below(self, jvm: Any, child: PlanNode) -> tuple[list[Any], PlanNode]:
        """Take the order of a Sort below a window without order: Spark plans ORDER BY ... LIMIT in a subquery so."""
        below, columns = jvm.child(), None
        if get_kind(below) == "Project":
            below, columns = below.child(), read_list(below.projectList())
        if get_kind(below) != "Sort" or not any(get_kind(part) == "RowNumber" for part in self._list_window_parts(jvm)):
            return [], child
        order, inner = self._join_subqueries(read_list(below.order()), self._convert(below.child()))
        if columns is None:
            return order, inner
        columns, inner = self._join_subqueries(columns, inner)
        known = {column.exprId().id() for column in columns}
        needed = [part for by in order for part in walk_parts(by) if get_kind(part) == "AttributeReference"]
        missing = {part.exprId().id(): part for part in needed if part.exprId().id() not in known}
        return order, make_map(self._catalyst, [*columns, *missing.values()], inner)

    def _list_window_parts(self, jvm: Any) -> list[Any]:
        return [part for column in read_list(jvm.windowExpressions()) for part in walk_parts(column)]

    def _convert_limit(self, jvm: Any) -> PlanNode:
        """Convert LIMIT and OFFSET above a Sort; Projects and Python functions in between are computed above them."""
        between: list[Any] = []
        cuts: list[Any] = []
        below = jvm
        while get_kind(below) in (*_LIMITS, *_PYTHON, "Project"):
            (cuts if get_kind(below) in _LIMITS else between).append(below)
            below = below.child()
        limit, offset = _combine_limits(reversed(cuts))
        if get_kind(below) != "Sort":
            why = (
                f"Spark's optimizer put {get_kind(below)} between a LIMIT or OFFSET and its ORDER BY; declare the "
                "query with the LIMIT as a materialized view, and read that"
            )
            raise InvalidInput(where=self._where, why=why)
        order, below = [by for by in read_list(below.order()) if not by.child().foldable()], below.child()
        order, child = self._join_subqueries(order, self._convert(below))
        order = make_total_order(self._catalyst, order, child.jvm, self._where)
        node = self._restore_output(self._make_top(order, child, limit, offset), below)
        for operator in reversed(between):
            if get_kind(operator) in _PYTHON:
                node = self._make_row_wise(operator, Map, node)
                continue
            columns, node = self._join_subqueries(read_list(operator.projectList()), node)
            node = make_map(self._catalyst, columns, node)
        return node

    def _make_top(self, order: list[Any], child: PlanNode, limit: int | None, offset: int) -> TopK:
        shared: dict[str, Any] = {
            "output": child.output,
            "children": (child,),
            "passed": {attribute.id: attribute.id for attribute in child.output},
        }
        if limit is None:  # Spark would concatenate sorted partitions in any order
            one = self._catalyst.sort(order, self._catalyst.cluster([], child.jvm), is_global=False)
            return TopK(jvm=self._catalyst.offset(offset, one), limit=None, offset=offset, **shared)
        ordered = self._catalyst.sort(order, child.jvm, is_global=True)
        kept = min(_TOP_FACTOR * (limit + offset) + _TOP_MORE, _ROWS_MAX)
        first = TopK(jvm=self._catalyst.limit(kept, ordered), limit=kept, offset=0, **shared)
        skipped = self._catalyst.offset(offset, ordered) if offset else ordered
        return TopK(jvm=self._catalyst.limit(limit, skipped), limit=limit, offset=offset, first=first, **shared)

    def _rewrite_exists(self, jvm: Any) -> Any:
        """Rewrite an uncorrelated EXISTS, which Spark plans as the scalar subquery SELECT 1 ... LIMIT 1, to max(1).

        max(1) is maintained incrementally, and is NULL for no rows, as the subquery is. The query's own LIMIT, if it is
        not 0, changes nothing.
        """
        if get_kind(jvm) != "GlobalLimit" or get_kind(jvm.child()) != "LocalLimit":
            return jvm
        below, [output] = jvm.child().child(), read_list(jvm.output())
        if int(jvm.limitExpr().eval(None)) != 1 or not _is_one(below, output):
            return jvm
        if get_kind(below) == "Project":
            below = self._catalyst.project(read_list(below.projectList()), _skip_limits(below.child()))
        one = self._catalyst.alias(self._catalyst.literal(1), "one")
        greatest = self._catalyst.aggregate_expression(self._catalyst.expression("aggregate.Max", one.toAttribute()))
        column = self._catalyst.alias(greatest, output.name(), output.exprId())
        return self._catalyst.aggregate([], [column], self._catalyst.project([one], below))

    def _convert_with_subqueries(self, jvm: Any) -> PlanNode:
        """Convert each scalar subquery in the operator's expressions to a column of its first input.

        In an Aggregate, subqueries in keys become columns of the input. Subqueries outside of aggregate functions are
        joined to the output, since as input columns they would be keys.
        """
        if get_kind(jvm) == "Aggregate" and any(map(_has_subquery_outside, read_list(jvm.groupingExpressions()))):
            return self._restore_output(self._convert(move_keys_below(self._catalyst, jvm, _has_subquery_outside)), jvm)
        if get_kind(jvm) == "Aggregate" and any(map(_has_subquery_outside, read_list(jvm.aggregateExpressions()))):
            return self._restore_output(self._convert(project_above_aggregate(self._catalyst, jvm)), jvm)
        found: dict[int, Any] = {}
        operator = self._catalyst.map_expressions(jvm, lambda expression: self._replace_subqueries(expression, found))
        children = read_list(jvm.children())
        first = children[0]
        for plan in found.values():
            first = self._join_value(first, plan)
        return self._restore_output(
            self._convert(self._catalyst.replace_children(operator, [first, *children[1:]])), jvm
        )

    def _join_subqueries(self, expressions: list[Any], node: PlanNode) -> tuple[list[Any], PlanNode]:
        """Replace the scalar subqueries in expressions by columns, and join these to the node."""
        found: dict[int, Any] = {}
        replaced = [self._replace_subqueries(expression, found) for expression in expressions]
        for plan in found.values():
            joined = self._join_value(node.jvm, plan)
            node = self._share(self._make_join(joined, node, self._convert(plan)))
        return replaced, node

    def _join_value(self, left: Any, plan: Any) -> Any:
        """Join the value of a scalar subquery: NULL if it has no row, an error if it has several."""
        rows = read_option(plan.maxRows())
        return self._catalyst.join(left, plan, JoinType.LEFT_OUTER if rows in (0, 1) else JoinType.LEFT_SINGLE, None)

    def _replace_subqueries(self, expression: Any, found: dict[int, Any]) -> Any:
        if get_kind(expression) == "ScalarSubquery":
            plan = self._rewrite_exists(expression.plan())
            [output] = read_list(plan.output())
            found[output.exprId().id()] = plan
            return output.withNullability(True)  # noqa: FBT003 - a subquery without rows is NULL
        if expression.getClass().getName().endswith("Subquery") or get_kind(expression) in ("Exists", "ListQuery"):
            raise InvalidInput(
                where=self._where, why=f"the subquery {expression.sql()} cannot be maintained; write it as a join"
            )
        children = read_list(expression.children())
        return self._catalyst.replace_children(
            expression, [self._replace_subqueries(child, found) for child in children]
        )


def _has_join(node: PlanNode) -> bool:
    """Whether the plan has a join that is not below an additive aggregate."""
    if isinstance(node, Aggregate) and node.is_additive:
        return False
    return isinstance(node, Join) or any(map(_has_join, node.children))


def _is_one(jvm: Any, attribute: Any) -> bool:
    """Whether a column of an operator is 1 in each row."""
    name, outputs = get_kind(jvm), [output.exprId().id() for output in read_list(jvm.output())]
    at = outputs.index(attribute.exprId().id())
    if name == "Union":
        return all(_is_one(child, read_list(child.output())[at]) for child in read_list(jvm.children()))
    if name not in ("Project", "Aggregate"):
        return False
    column = read_list(jvm.projectList() if name == "Project" else jvm.aggregateExpressions())[at]
    value = column.child() if get_kind(column) == "Alias" else column
    is_int = get_kind(value) == "Literal" and value.dataType().sql() == "INT"  # in Python, True and 1.0 equal 1
    return is_int and value.value() == 1


def _skip_limits(jvm: Any) -> Any:
    """The operator below LIMITs that keep at least one row."""
    while get_kind(jvm) == "LocalLimit" or (get_kind(jvm) == "GlobalLimit" and int(jvm.limitExpr().eval(None)) > 0):
        jvm = jvm.child()
    return jvm


def _combine_limits(cuts: Iterable[Any]) -> tuple[int | None, int]:
    """Combine LIMITs and OFFSETs, lowest first, each applied to the rows that the one before leaves, to one of each."""
    first, end = 0, None
    for cut in cuts:
        if get_kind(cut) == "Offset":
            first += int(cut.offsetExpr().eval(None))
        elif get_kind(cut) == "GlobalLimit":
            to = first + int(cut.limitExpr().eval(None))
            end = to if end is None else min(end, to)
    return (None, first) if end is None else (max(end - first, 0), min(first, end))


def _has_subquery_outside(expression: Any) -> bool:
    """Whether the expression has a scalar subquery outside of aggregate functions."""
    if get_kind(expression) == "AggregateExpression":
        return False
    return get_kind(expression) == "ScalarSubquery" or any(map(_has_subquery_outside, read_list(expression.children())))


def _find_join_type(jvm: Any) -> JoinType:
    return _JOINS[get_kind(jvm.joinType())]
