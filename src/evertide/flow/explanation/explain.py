"""Explains how each operator of a circuit is maintained, what state it has, and what it costs.

The explanation is derived from the parts of the circuit that run the operator: the stage that computes it, and the
look-ups that the stage's cone does for it.

    linear              processes only the delta; no state
    difference rule     new minus old result over the touched rows, which are looked up by key
    sums per group      a delta is added to the sums of its group
    per group           all rows of a touched group are looked up, and the group is recomputed
    as a whole          any change recomputes it from all rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from evertide.flow.aggregates.top import Top
from evertide.flow.aggregates.totals import Totals
from evertide.flow.circuit import Circuit, get_output
from evertide.flow.collection import CircuitCollection, Leaf
from evertide.flow.explanation.explanation import (
    Cost,
    ExplainedArrangement,
    Explanation,
    Operator,
    RunCounts,
    ViewExplanation,
)
from evertide.flow.stage import RunKind, Stage, find_own_lookups
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.trace import is_one_row, list_own_nodes
from evertide.plan.algebra.description import describe_node, list_column_names
from evertide.plan.algebra.nodes import Aggregate, ConstantRows, Join, JoinType, PlanNode, Scan, TopK, Window

_AS_A_WHOLE: tuple[str, Cost] = ("computed again as a whole", Cost.WHOLE_INPUT)


def explain(circuit: Circuit) -> Explanation:
    found = _CircuitParts(circuit)
    views = [_ViewExplainer(found, name, plan).explain() for name, plan in circuit.program.views.items()]
    return Explanation(tuple(views), tuple(found.arranged.values()))


class _CircuitParts:
    """The part of the circuit that runs each operator, and the arrangements found so far, by name."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        self.arranged: dict[str, ExplainedArrangement] = {}
        self.by_node: dict[int, Stage | Top | Totals] = {}
        for part in circuit.parts:
            for node in _list_nodes(part):
                self.by_node.setdefault(id(node), part)

    def add(self, arrangement: Arrangement, of: str, key: Sequence[str]) -> str:
        found = ExplainedArrangement(arrangement.name, of, tuple(key), arrangement.rows, arrangement.bytes)
        self.arranged.setdefault(arrangement.name, found)
        return arrangement.name


def _list_nodes(part: Stage | Top | Totals) -> Iterator[PlanNode]:
    return list_own_nodes(part.cut, part.cut.root) if isinstance(part, Stage) else iter((part.node,))


class _ViewExplainer:
    def __init__(self, parts: _CircuitParts, name: str, plan: PlanNode) -> None:
        self._parts = parts
        self._name = name
        self._plan = plan
        self._numbers: dict[int, int] = {}
        self._operators: list[Operator] = []

    def explain(self) -> ViewExplanation:
        self._number(self._plan)
        self._add(self._plan)
        operators = tuple(sorted(self._operators, key=lambda operator: operator.number))
        return ViewExplanation(self._name, operators, self._count_runs())

    def _count_runs(self) -> RunCounts:
        parts = [self._parts.by_node[node] for node in self._numbers if node in self._parts.by_node]
        stages = {id(part): part for part in parts if isinstance(part, Stage)}
        total = sum((stage.run_counts for stage in stages.values()), Counter[RunKind]())
        return RunCounts(**{kind: total[kind] for kind in RunKind})

    def _number(self, node: PlanNode) -> None:
        if id(node) not in self._numbers:
            self._numbers[id(node)] = len(self._numbers) + 1
            for child in node.children:
                self._number(child)

    def _add(self, node: PlanNode) -> None:
        number = self._numbers[id(node)]
        if any(operator.number == number for operator in self._operators):
            return
        how, cost = self._describe(node)
        part = self._parts.by_node.get(id(node))
        name = node.collection if isinstance(node, Scan) else self._name if part is None else get_output(part).name
        inputs = tuple(self._numbers[id(child)] for child in node.children)
        state = tuple(dict.fromkeys(self._list_state(node, part)))
        self._operators.append(Operator(number, node.kind, describe_node(node), how, cost, name, state, inputs))
        for child in node.children:
            self._add(child)

    def _describe(self, node: PlanNode) -> tuple[str, Cost]:
        match node:
            case Scan():
                is_view = node.collection in self._parts.circuit.views
                found: tuple[str, Cost] = ("a view of its own" if is_view else "a table"), Cost.DELTA
            case Join():
                found = self._describe_join(node)
            case Aggregate():
                found = _describe_aggregate(node)
            case Window():
                found = _describe_window(node)
            case TopK():
                found = _describe_top(node)
            case _:
                found = ("never changes", Cost.NONE) if isinstance(node, ConstantRows) else ("linear", Cost.DELTA)
        return found

    def _describe_join(self, node: Join) -> tuple[str, Cost]:
        part = self._parts.by_node.get(id(node))
        if not isinstance(part, Stage):
            return "difference rule", Cost.TOUCHED_GROUPS
        left, right = node.children
        looked_up = list(find_own_lookups(part.cut, node))
        if not looked_up:
            return "linear, as one side never changes", Cost.DELTA
        by = part.cut.joins[id(node)]
        if not by.left and any(map(is_one_row, (left, right))):
            return "difference rule with one row, scans the other side when that changes", Cost.SCAN
        if not by.left:
            return "difference rule, scans the other side", Cost.SCAN
        keys = f"({', '.join(list_column_names(left, by.left))}) = ({', '.join(list_column_names(right, by.right))})"
        return f"difference rule by {keys}", Cost.DELTA if node.join is JoinType.INNER else Cost.TOUCHED_GROUPS

    def _list_state(self, node: PlanNode, part: Stage | Top | Totals | None) -> Iterator[str]:
        match part:
            case Totals():
                keys = list_column_names(part.node, part.node.ids[: len(part.keys)])
                yield self._parts.add(part.state, part.name, keys)
                for extreme in part.extremes:
                    yield self._parts.add(extreme.values, f"{part.name}, values", keys)
            case Top():
                yield self._parts.add(part.state, f"{part.name}, first rows", ())
                yield from self._list_scanned(part.inputs)
            case Stage():
                for at, attributes in find_own_lookups(part.cut, node):
                    leaf, below = part.leaves[at], part.cut.leaves[at]
                    yield from self._list_looked_up(leaf, attributes, list_column_names(below, attributes))

    def _list_looked_up(self, leaf: Leaf, attributes: tuple[int, ...], names: tuple[str, ...]) -> Iterator[str]:
        collection = leaf.collection
        key = tuple(map(leaf.get_column, attributes))
        found = collection.arrangements.get((key, leaf.columns))
        if found is not None:
            yield self._parts.add(found, collection.name, names)
        elif isinstance(collection, Totals):
            yield self._parts.add(collection.state, collection.name, names)

    def _list_scanned(self, collection: CircuitCollection) -> Iterator[str]:
        for (key, _), found in collection.arrangements.items():
            if not key:
                yield self._parts.add(found, collection.name, ())


def _describe_aggregate(node: Aggregate) -> tuple[str, Cost]:
    keys = f"({', '.join(list_column_names(node.children[0], node.keys))})"
    if node.is_additive:
        return f"{_describe_sums(node)} {'per group ' + keys if node.keys else 'of all rows'}", Cost.TOUCHED_GROUPS
    if not node.keys:
        return _AS_A_WHOLE
    return f"computed again per group {keys}", Cost.TOUCHED_GROUPS


def _describe_sums(node: Aggregate) -> str:
    kinds = {function.is_extreme: "extremes" if function.is_extreme else "sums" for function in node.functions}
    return " and ".join(kinds[key] for key in sorted(kinds)) or "counts"


def _describe_window(node: Window) -> tuple[str, Cost]:
    if not node.partition:
        return _AS_A_WHOLE
    keys = ", ".join(list_column_names(node.children[0], node.partition))
    return f"computed again per partition ({keys})", Cost.TOUCHED_GROUPS


def _describe_top(node: TopK) -> tuple[str, Cost]:
    if node.first is None:
        return _AS_A_WHOLE
    return "first rows and a reserve kept, a scan when it is used up", Cost.DELTA
