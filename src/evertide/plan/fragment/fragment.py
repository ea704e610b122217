"""A fragment of a plan that is prepared to run: Catalyst's operators over leaves that get new rows for each run.

A fragment is a tree of nodes from a root down to leaves, which represent other collections. It is prepared once:
placeholders replace the leaves, and Catalyst's optimizer optimizes the whole tree. A run binds rows to the leaves of
one or two copies of the tree, old and new, and returns the rows of both with the sign as `__diff`: the difference, not
consolidated.

1. Only attributes that the fragment reads are bound; the other columns of a leaf never leave its arrangement.
2. A run over few rows is not analyzed, optimized or planned again; a run over many rows is planned.
3. Few rows are in one partition, so that no exchange is needed, and are computed in the driver, mostly without a job
   (`evertide.plan.fragment.local_runner`).
4. If a join produces very many rows from few, the run is aborted and repeated as a run over many rows.
5. Many rows are distributed over the executors, in a session with settings for that. For a map, only the columns that
   it reads and computes are transferred (`NarrowMap`). If the reader only counts and adds up the rows, the executors
   condense them (`evertide.plan.fragment.condenser`).

Threads: a fragment belongs to one circuit, and one thread runs it at a time. Fragments of other circuits run
concurrently; they share the `Catalyst` and the plans in the JVM, which are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.plan.algebra.nodes import Attribute, Expand, Filter, Generate, JoinType, Map, PlanNode, Union
from evertide.plan.algebra.plan_columns import make_arrow_schema
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.jobs import Jobs
from evertide.plan.catalyst.walk import get_kind, read_list, walk_own_nodes
from evertide.plan.fragment.condensed_column import ColumnUse
from evertide.plan.fragment.condenser import Condenser
from evertide.plan.fragment.forms import Form, find_outer_joins, rewrite_to_form
from evertide.plan.fragment.local_runner import LocalRunner, Term
from evertide.rows.changes import DIFF, DIFF_FIELD
from evertide.rows.conform import conform_table

__all__ = ["ROWS_JOINED_MAX", "ROWS_SMALL_MAX", "Fragment", "StoredLeaf", "Term"]

_ROW_WISE = (Map, Filter, Expand, Generate)
ROWS_SMALL_MAX = 16_384
"""Up to this number of rows, one thread of the driver is faster than a job with many tasks."""
ROWS_JOINED_MAX = 64 * ROWS_SMALL_MAX
"""Rows that a join may produce in that thread before the run is aborted."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """A Catalyst operator and its children; `leaf` is the number of a leaf, or -1."""

    jvm: Any
    below: tuple[_Tree, ...] = ()
    leaf: int = -1


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """The rows of a leaf, which tasks on the executors read; none if there are no tasks."""

    read: Callable[[Any], Iterable[bytes]]
    """Returns the rows for a task, as messages of Arrow IPC without the schema."""
    tasks: Sequence[Any]
    bytes: int


class Fragment:
    """A prepared part of a plan; a run binds rows to its leaves and returns the result."""

    def __init__(
        self, catalyst: Catalyst, root: PlanNode, leaves: Sequence[PlanNode], keys: Set[int] = frozenset()
    ) -> None:
        """`leaves` are nodes below the root, by identity; each may occur several times in the tree.

        `keys` are further attributes of leaves to bind, which the fragment itself does not read.
        """
        self._catalyst = catalyst
        self.output = root.output
        self.schema = make_arrow_schema(root.output)
        self._changes = pa.schema([*self.schema, DIFF_FIELD])
        references = _list_references(root, list(leaves)) | set(root.ids) | keys
        self.reads: list[tuple[Attribute, ...]] = [_choose_attributes(leaf, references) for leaf in leaves]
        self.schemas = [make_arrow_schema(read) for read in self.reads]
        self._attributes = [_find_attributes(leaf, read) for leaf, read in zip(leaves, self.reads, strict=True)]
        self._outputs = [catalyst.seq(attributes) for attributes in self._attributes]
        self._empty = [catalyst.make_empty_relation(attributes) for attributes in self._attributes]
        self._structs = [relation.schema() for relation in self._empty]
        self._signs = {sign: catalyst.alias(catalyst.make_long(sign), DIFF) for sign in (-1, 1)}
        placeholders = [catalyst.make_placeholder(outputs) for outputs in self._outputs]
        self._placeholder_ids = [placeholder.rdd().id() for placeholder in placeholders]
        self._numbers = {placeholder: at for at, placeholder in enumerate(self._placeholder_ids)}
        plan = _replace_leaves(catalyst, root.jvm, root, list(leaves), placeholders)
        self._tree = _build_tree(catalyst.optimize(plan), self._numbers)
        self._forms = {Form.WHOLE: self._tree}
        self._columns = read_list(self._tree.jvm.output())
        self._signed_struct = self._add_sign(self._tree.jvm, 1).schema()
        self._aborted_rows: int | None = None
        """The number of input rows of the last run over few rows in which a join produced too many."""
        self._condenser: tuple[Condenser, Callable[[Any], pa.Table]] | None = None
        """Condenses the rows of a run over many rows, and collects the groups."""
        self.is_row_wise = _is_row_wise(root, list(leaves))
        self.is_rename_only = _is_rename_only(root, list(leaves))

    def run(
        self,
        terms: Sequence[Term],
        *,
        uses: Sequence[ColumnUse] | None = None,
        large: Mapping[Form, Sequence[Term]] | None = None,
    ) -> pa.Table:
        """Compute the rows of the tree for the leaves of each term, with the term's sign as diff.

        `uses`: what the reader needs of each column, if the executors are to condense many rows to few; then the result
        has other rows and diffs, with the same counts and sums. It is the same in all runs.
        `large`: other terms with the same sum, by the form of the tree, for the executors.
        """
        many = {Form.WHOLE: terms} if large is None else large
        if self.is_large(terms):
            return self._run_large(many, uses=uses)
        found = self._local_runner.run(terms, is_row_wise=self.is_row_wise)
        if found is None:
            self._aborted_rows = _count_rows(terms)
            return self._run_large(many, uses=uses)
        typed = [conform_table(rows, self._changes) for rows in found]
        return pa.concat_tables(typed) if typed else self._changes.empty_table()

    def is_large(self, terms: Sequence[Term]) -> bool:
        """Whether the executors run it: there are many rows, or at least as many as in a run that was aborted."""
        rows = _count_rows(terms)
        return rows > ROWS_SMALL_MAX or (self._aborted_rows is not None and rows >= self._aborted_rows)

    def run_stored(
        self, jobs: Jobs, leaves: Sequence[StoredLeaf], tail: Callable[[Iterator[bytes], str], Any], partitions: int
    ) -> list[Any]:
        """Compute the rows of the tree for leaves that the executors read, and call `tail` with those of each
        partition, as messages of Arrow IPC with the schema `stored_schema`."""
        relations = self._make_relations(jobs, leaves)
        return jobs.run(self._bind(self._tree, relations), self._batch_maker[0], tail, partitions)

    def collect_stored(self, jobs: Jobs, leaves: Sequence[StoredLeaf]) -> pa.Table:
        """Like `run_stored`, but return the rows, in order, with the diff 1."""
        relations = self._make_relations(jobs, leaves)
        found = self._collect_large(self._add_sign(self._bind(self._tree, relations), 1))
        return conform_table(found.combine_chunks(), self._changes)

    def condense_stored(
        self, jobs: Jobs, leaves: Sequence[StoredLeaf], uses: Sequence[ColumnUse], rows_read: int
    ) -> pa.Table | None:
        """The rows that executors condensed (`run`); None if they cannot be condensed to much fewer."""
        plan = self._add_sign(self._bind(self._tree, self._make_relations(jobs, leaves)), 1)
        found = self._collect_condensed(plan, uses, rows_read)
        return None if found is None else conform_table(found, self._changes)

    @property
    def stored_schema(self) -> pa.Schema:
        return self._batch_maker[1]

    @cached_property
    def _batch_maker(self) -> tuple[Any, pa.Schema]:
        return self._catalyst.make_batch_maker(self._tree.jvm.schema())

    def _make_relations(self, jobs: Jobs, leaves: Sequence[StoredLeaf]) -> list[Any]:
        return [
            jobs.spread(leaf.read, leaf.tasks, self._outputs[at], self._structs[at], leaf.bytes)
            if leaf.tasks
            else self._empty[at]
            for at, leaf in enumerate(leaves)
        ]

    def find_outer_joins(self) -> list[JoinType]:
        """The types of the outer joins that the optimizer left."""
        return find_outer_joins(self._tree.jvm)

    def _run_large(self, terms: Mapping[Form, Sequence[Term]], *, uses: Sequence[ColumnUse] | None) -> pa.Table:
        if self._narrow is not None and terms.keys() == {Form.WHOLE}:
            return self._run_narrow(self._narrow, terms[Form.WHOLE])
        spread: dict[tuple[int, int], Any] = {}
        """By leaf and table: terms share tables, and each table is sent to the executors once."""
        for _, leaves in (term for several in terms.values() for term in several):
            for at, rows in enumerate(leaves):
                if (at, id(rows)) not in spread:
                    spread[at, id(rows)] = self._spread(at, rows)
        trees = [
            self._add_sign(
                self._bind(self._plan_form(form), [spread[at, id(rows)] for at, rows in enumerate(leaves)]), sign
            )
            for form, several in terms.items()
            for sign, leaves in several
        ]
        if not trees:
            return self._changes.empty_table()
        plan = self._catalyst.union(trees)
        rows_read = sum(map(_count_rows, terms.values()))
        condensed = None if uses is None else self._collect_condensed(plan, uses, rows_read)
        if condensed is not None:
            return conform_table(condensed, self._changes)
        found = self._collect_large(plan)
        return conform_table(found.combine_chunks(), self._changes)  # once here, rather than at each read of a column

    def _plan_form(self, form: Form) -> _Tree:
        if form not in self._forms:
            self._forms[form] = _build_tree(rewrite_to_form(self._catalyst, self._tree.jvm, form), self._numbers)
        return self._forms[form]

    def _run_narrow(self, narrow_map: NarrowMap, terms: Sequence[Term]) -> pa.Table:
        leaves = [leaf for _, [leaf] in terms]
        spread, collect = self._narrow_transfers
        trees = [self._catalyst.project(narrow_map.computed, spread(leaf)) for leaf in leaves if leaf.num_rows]
        found = collect(self._catalyst.union(trees)).combine_chunks()
        signs = pa.array(np.repeat([sign for sign, _ in terms], [leaf.num_rows for leaf in leaves]))
        columns = narrow_map.assemble(pa.concat_tables(leaves), found)
        return conform_table(pa.Table.from_arrays([*columns, signs], names=self._changes.names), self._changes)

    @cached_property
    def _narrow(self) -> NarrowMap | None:
        is_map = get_kind(self._tree.jvm) == "Project" and [tree.leaf for tree in self._tree.below] == [0]
        return make_narrow_map(self._tree.jvm, self._attributes[0]) if is_map and len(self.reads) == 1 else None

    @cached_property
    def _narrow_transfers(self) -> tuple[Callable[[pa.Table], Any], Callable[[Any], pa.Table]]:
        """Functions that send the columns that are read to the executors, and collect the computed ones."""
        narrow_map = self._narrow
        if narrow_map is None:
            raise ValueError("the fragment is not a map over one leaf")
        attributes = [self._attributes[0][at] for at in narrow_map.reads]
        outputs, empty = self._catalyst.seq(attributes), self._catalyst.make_empty_relation(attributes)
        schema, struct = pa.schema([self.schemas[0].field(at) for at in narrow_map.reads]), empty.schema()

        def spread(leaf: pa.Table) -> Any:
            columns = [leaf.column(at) for at in narrow_map.reads]
            return self._catalyst.spread(pa.Table.from_arrays(columns, schema=schema), outputs, struct)

        return spread, self._catalyst.make_collector(self._catalyst.project(narrow_map.computed, empty).schema())

    @cached_property
    def _collect_large(self) -> Callable[[Any], pa.Table]:
        return self._catalyst.make_collector(self._signed_struct)

    @cached_property
    def _local_runner(self) -> LocalRunner:
        signed = [self._catalyst.seq([*self._columns, self._signs[sign]]) for sign in (-1, 1)]
        per_leaf = (self._placeholder_ids, self._outputs, self._structs)
        lists = [self._catalyst.make_java_list(values) for values in per_leaf]
        tree = self._tree
        jvm = self._catalyst.make_local_runner(
            tree.jvm, _measure_height(tree), *lists, *signed, self._signed_struct, ROWS_JOINED_MAX
        )
        return LocalRunner(jvm, self.schemas)

    def _add_sign(self, plan: Any, sign: int) -> Any:
        return self._catalyst.project([*read_list(plan.output()), self._signs[sign]], plan)

    def _collect_condensed(self, plan: Any, uses: Sequence[ColumnUse], rows_read: int) -> pa.Table | None:
        if self._condenser is None:
            condenser = Condenser(self._catalyst, self.schema, uses)
            struct = condenser.condense(self._add_sign(self._tree.jvm, 1)).schema()
            self._condenser = condenser, self._catalyst.make_collector(struct)
            condenser.judge(self._condenser[1](condenser.sample(plan)), rows_read)
        condenser, collect = self._condenser
        return condenser.expand(collect(condenser.condense(plan))) if condenser.is_worthwhile else None

    def _bind(self, tree: _Tree, leaves: list[Any]) -> Any:
        if tree.leaf >= 0:
            return leaves[tree.leaf]
        return self._catalyst.replace_children(tree.jvm, [self._bind(child, leaves) for child in tree.below])

    def _spread(self, at: int, rows: pa.Table) -> Any:
        """Distribute rows over the executors."""
        if not rows.num_rows:
            return self._empty[at]
        rows = pa.Table.from_arrays(rows.columns, schema=self.schemas[at])
        return self._catalyst.spread(rows, self._outputs[at], self._structs[at])


def _count_rows(terms: Sequence[Term]) -> int:
    return sum(rows.num_rows for _, leaves in terms for rows in leaves)


def _find_attributes(leaf: PlanNode, read: tuple[Attribute, ...]) -> list[Any]:
    by_id = {attribute.exprId().id(): attribute for attribute in read_list(leaf.jvm.output())}
    return [by_id[attribute.id] for attribute in read]


def _replace_leaves(catalyst: Catalyst, jvm: Any, node: PlanNode, leaves: list[PlanNode], marks: list[Any]) -> Any:
    """Replace leaves by their placeholders, `marks`. Operators between a node and its children belong to the node."""
    for leaf, mark in zip(leaves, marks, strict=True):
        if node is leaf:
            return mark
    return _replace_below(catalyst, jvm, node, leaves, marks)


def _replace_below(catalyst: Catalyst, jvm: Any, node: PlanNode, leaves: list[PlanNode], marks: list[Any]) -> Any:
    below = []
    for child in read_list(jvm.children()):
        known = next((other for other in node.children if other.jvm.equals(child)), None)
        if known is None:
            below.append(_replace_below(catalyst, child, node, leaves, marks))
        else:
            below.append(_replace_leaves(catalyst, child, known, leaves, marks))
    return catalyst.replace_children(jvm, below)


def _build_tree(jvm: Any, numbers: dict[int, int]) -> _Tree:
    if get_kind(jvm) == "LogicalRDD" and jvm.rdd().id() in numbers:
        return _Tree(jvm, leaf=numbers[jvm.rdd().id()])
    below = tuple(_build_tree(child, numbers) for child in read_list(jvm.children()))
    return _Tree(jvm, below)


def _measure_height(tree: _Tree) -> int:
    return 1 + max(map(_measure_height, tree.below)) if tree.below else 0


def _choose_attributes(leaf: PlanNode, references: Set[int]) -> tuple[Attribute, ...]:
    """The attributes of a leaf to bind: at least one, since an Arrow table without columns has no rows."""
    found = {attribute.id: attribute for attribute in leaf.output if attribute.id in references}
    return tuple(found.values()) or leaf.output[:1]


def _list_references(root: PlanNode, leaves: list[PlanNode]) -> set[int]:
    """Attributes that the operators above the leaves read."""
    if any(root is leaf for leaf in leaves):
        return set()
    own = walk_own_nodes(root.jvm, [child.jvm for child in root.children])
    found = {attribute.exprId().id() for jvm in own for attribute in read_list(jvm.references().toSeq())}
    for child in root.children:
        found |= _list_references(child, leaves)
        if isinstance(root, Union):
            found |= set(child.ids)
    return found


def _is_true_for_all(root: PlanNode, leaves: list[PlanNode], holds: Callable[[PlanNode], bool]) -> bool:
    if any(root is leaf for leaf in leaves):
        return True
    return holds(root) and all(_is_true_for_all(child, leaves, holds) for child in root.children)


def _is_row_wise(root: PlanNode, leaves: list[PlanNode]) -> bool:
    return _is_true_for_all(root, leaves, lambda node: isinstance(node, _ROW_WISE))


def _is_rename_only(root: PlanNode, leaves: list[PlanNode]) -> bool:
    return _is_true_for_all(root, leaves, lambda node: isinstance(node, Map) and node.is_rename_only)


@dataclass(frozen=True, slots=True)
class NarrowMap:
    """A map over many rows that sends only the columns it reads to the executors, and collects only those it computes.

    Rows are matched by position: a Project over a leaf outputs one row per input row, in the order of the partitions.
    """

    computed: tuple[Any, ...]
    """Catalyst expressions."""
    reads: tuple[int, ...]
    """Positions of the leaf's columns that they read."""
    places: tuple[tuple[bool, int], ...]
    """Per output column: whether it is computed, and its position among the computed columns or in the leaf."""

    def assemble(self, leaf: pa.Table, found: pa.Table) -> list[Any]:
        """Combine columns of the leaf and computed columns to the output."""
        return [(found if is_computed else leaf).column(at) for is_computed, at in self.places]


def make_narrow_map(project: Any, attributes: Sequence[Any]) -> NarrowMap | None:
    """Split a Project over a leaf; None if all its columns are computed, or none is."""
    positions = {attribute.exprId().id(): at for at, attribute in enumerate(attributes)}
    computed: list[Any] = []
    places: list[tuple[bool, int]] = []
    for expression in read_list(project.projectList()):
        source = expression.child() if get_kind(expression) == "Alias" else expression
        if get_kind(source) == "AttributeReference":
            places.append((False, positions[source.exprId().id()]))
        else:
            places.append((True, len(computed)))
            computed.append(expression)
    if len(computed) in (0, len(places)):
        return None
    reads = {positions[read.exprId().id()] for each in computed for read in read_list(each.references().toSeq())}
    return NarrowMap(tuple(computed), tuple(sorted(reads)) or (0,), tuple(places))
