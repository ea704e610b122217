"""A fragment of a plan, ready to run: Catalyst's own operators over leaves that are filled anew for each run.

A fragment is a tree of nodes from a root down to leaves, which stand for other collections. It is prepared once:
placeholders take the leaves' places, and Catalyst's optimizer sees the whole. A run binds rows to the leaves of one or
two copies of the tree, the old and the new, and yields the rows of both with the sign as `__diff`: the difference, not
yet consolidated.

1. Only attributes that the fragment reads are bound; the rest of a leaf never leaves its arrangement.
2. A run is planned and executed, but neither analyzed nor optimized again.
3. Rows on the driver become a local relation in one partition, so that no exchange is left to plan. Where only rows are
   mapped and filtered, Catalyst computes them in place, without a job.
4. Frames on executors (`Frame`) keep their partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from evertide.plan.catalyst import Catalyst
from evertide.plan.columns import arrow_schema
from evertide.plan.nodes import Attribute, Expand, Filter, Generate, Map, Node
from evertide.plan.scala import sequence
from evertide.plan.walk import kind
from evertide.shard.changes import DIFF

__all__ = ["Bound", "Fragment", "Frame"]

_ROW_WISE = (Map, Filter, Expand, Generate)
_ARROW = "org.apache.spark.sql.execution.arrow.ArrowConverters"
_IN_PLACE = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
_NO = (False, False)
"""Names may repeat; strings have 32-bit offsets."""
_ROWS_MAX = 1 << 31
_TIME_ZONE = "UTC"
"""Of timestamps in Arrow: instants do not depend on it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows that stay on the executors: the columns of a leaf that are read, in order."""

    frame: DataFrame


Bound: TypeAlias = "pa.Table | Frame"


@dataclass(frozen=True, slots=True)
class _Tree:
    """An operator of Catalyst and the places below; `leaf` is its number, or -1."""

    jvm: Any
    below: tuple[_Tree, ...] = ()
    leaf: int = -1
    is_exchange: bool = False


class Fragment:
    def __init__(self, catalyst: Catalyst, root: Node, leaves: Sequence[Node], keys: Set[int] = frozenset()) -> None:
        """`leaves` are nodes below the root, by identity, each at one place of the tree or more.

        `keys` are attributes of leaves that are read although the fragment itself does not.
        """
        self._catalyst = catalyst
        self.output = root.output
        self.schema = arrow_schema(root.output)
        self._changes = pa.schema([*self.schema, pa.field(DIFF, pa.int64(), nullable=False)])
        references = _references(root, list(leaves)) | set(root.ids) | keys
        self.reads: list[tuple[Attribute, ...]] = [_read(leaf, references) for leaf in leaves]
        self.schemas = [arrow_schema(read) for read in self.reads]
        self._attributes = [_attributes_of(leaf, read) for leaf, read in zip(leaves, self.reads, strict=True)]
        self._outputs = [catalyst.seq(attributes) for attributes in self._attributes]
        self._empty = [catalyst.local(attributes) for attributes in self._attributes]
        self._structs = [relation.schema() for relation in self._empty]
        self._signs = {sign: catalyst.alias(catalyst.long(sign), DIFF) for sign in (-1, 1)}
        self._tree = self._prepared(root, list(leaves))
        self._columns = sequence(self._tree.jvm.output())
        self._row_struct = self._tree.jvm.schema()
        self._signed_struct = self._with_sign(self._tree.jvm, 1).schema()
        self.is_row_wise = _is_row_wise(root, list(leaves))
        self.is_moves_only = _is_moves_only(root, list(leaves))

    def run(self, terms: Sequence[tuple[int, Sequence[Bound]]]) -> pa.Table:
        """Of each term the rows that the tree makes of its leaves, times its sign; on the driver."""
        if self.is_row_wise and all(isinstance(rows, pa.Table) for _, leaves in terms for rows in leaves):
            found = [self._in_place(self._bind(leaves, is_local=True)) for _, leaves in terms]
            tables = [rows for rows in found if rows is not None]
            if len(tables) == len(terms):
                return pa.concat_tables(
                    [self._signed(rows, sign) for rows, (sign, _) in zip(tables, terms, strict=True)]
                )
        rows = self._catalyst.run(self.frame(terms))
        return self._table(rows, self._signed_struct, self._changes)

    def frame(self, terms: Sequence[tuple[int, Sequence[Bound]]]) -> Any:
        """The same as a plan that is not run: its output is the fragment's, then the sign."""
        trees = [self._with_sign(self._bind(leaves, is_local=False), sign) for sign, leaves in terms]
        return self._catalyst.union(trees)

    def _in_place(self, plan: Any) -> pa.Table | None:
        done = self._catalyst.companion(_IN_PLACE).apply(plan)
        if kind(done) != "LocalRelation":
            return None
        return self._table(done.data().iterator(), self._row_struct, self.schema)

    def _table(self, rows: Any, struct: Any, schema: pa.Schema) -> pa.Table:
        batches = self._catalyst.companion(_ARROW).toBatchWithSchemaIterator(
            rows, struct, _ROWS_MAX, _ROWS_MAX, _TIME_ZONE, *_NO
        )
        found = [table for table in _tables(batches) if table.num_rows]
        if not found:
            return schema.empty_table()
        return pa.concat_tables(
            [pa.Table.from_arrays(table.columns, names=schema.names).cast(schema) for table in found]
        )

    def _signed(self, rows: pa.Table, sign: int) -> pa.Table:
        diffs = pa.array(np.full(rows.num_rows, sign, np.int64))
        return rows.append_column(pa.field(DIFF, pa.int64(), nullable=False), diffs)

    def _with_sign(self, plan: Any, sign: int) -> Any:
        return self._catalyst.project([*self._columns, self._signs[sign]], plan)

    def _bind(self, leaves: Sequence[Bound], *, is_local: bool) -> Any:
        bound = [self._leaf(at, rows, is_local=is_local) for at, rows in enumerate(leaves)]
        is_small = all(isinstance(rows, pa.Table) for rows in leaves)
        return self._build(self._tree, bound, is_small=is_small)

    def _build(self, tree: _Tree, bound: list[Any], *, is_small: bool) -> Any:
        if tree.leaf >= 0:
            return bound[tree.leaf]
        children = [self._build(child, bound, is_small=is_small) for child in tree.below]
        if is_small and tree.is_exchange:
            return children[0]
        return self._catalyst.with_children(tree.jvm, children)

    def _leaf(self, at: int, rows: Bound, *, is_local: bool) -> Any:
        if isinstance(rows, Frame):
            return self._framed(at, rows.frame)
        relation = self._relation(at, rows)
        return relation if is_local else self._catalyst.one_partition(relation)

    def _relation(self, at: int, rows: pa.Table) -> Any:
        if not rows.num_rows:
            return self._empty[at]
        rows = pa.Table.from_arrays(rows.columns, schema=self.schemas[at]).combine_chunks()
        batches = [batch.serialize().to_pybytes() for batch in rows.to_batches()]
        made = self._catalyst.companion(_ARROW).toDataFrame(
            self._catalyst.iterator(batches), self._structs[at], self._catalyst.session, _TIME_ZONE, *_NO
        )
        return self._catalyst.local_rows(self._outputs[at], made.queryExecution().logical().data())

    def _framed(self, at: int, frame: DataFrame) -> Any:
        plan = frame._jdf.queryExecution().analyzed()
        columns = [
            self._catalyst.alias(column, attribute.name(), attribute.exprId())
            for column, attribute in zip(sequence(plan.output()), self._attributes[at], strict=True)
        ]
        return self._catalyst.project(columns, plan)

    def _prepared(self, root: Node, leaves: list[Node]) -> _Tree:
        """The tree as Catalyst optimizes it, with placeholders where the leaves are."""
        marks = [self._catalyst.placeholder(outputs) for outputs in self._outputs]
        numbers = {mark.rdd().id(): at for at, mark in enumerate(marks)}
        plan = _replaced(self._catalyst, root.jvm, root, leaves, marks)
        return _tree_of(self._catalyst.optimized(plan), numbers)


def _attributes_of(leaf: Node, read: tuple[Attribute, ...]) -> list[Any]:
    by_id = {attribute.exprId().id(): attribute for attribute in sequence(leaf.jvm.output())}
    return [by_id[attribute.id] for attribute in read]


def _replaced(catalyst: Catalyst, jvm: Any, node: Node, leaves: list[Node], marks: list[Any]) -> Any:
    """Operators of Catalyst between a node and its children (a Sort, a Project) are the node's own."""
    for leaf, mark in zip(leaves, marks, strict=True):
        if node is leaf:
            return mark
    return _inside(catalyst, jvm, node, leaves, marks)


def _inside(catalyst: Catalyst, jvm: Any, node: Node, leaves: list[Node], marks: list[Any]) -> Any:
    below = []
    for child in sequence(jvm.children()):
        known = next((other for other in node.children if other.jvm.equals(child)), None)
        if known is None:
            below.append(_inside(catalyst, child, node, leaves, marks))
        else:
            below.append(_replaced(catalyst, child, known, leaves, marks))
    return catalyst.with_children(jvm, below)


def _tree_of(jvm: Any, numbers: dict[int, int]) -> _Tree:
    if kind(jvm) == "LogicalRDD" and jvm.rdd().id() in numbers:
        return _Tree(jvm, leaf=numbers[jvm.rdd().id()])
    below = tuple(_tree_of(child, numbers) for child in sequence(jvm.children()))
    return _Tree(jvm, below, is_exchange=kind(jvm) == "RepartitionByExpression")


def _read(leaf: Node, references: Set[int]) -> tuple[Attribute, ...]:
    """At least one column, as Arrow cannot count rows without any."""
    return tuple(attribute for attribute in leaf.output if attribute.id in references) or leaf.output[:1]


def _tables(batches: Any) -> list[pa.Table]:
    found = []
    while batches.hasNext():
        found.append(pa.ipc.open_stream(batches.next()).read_all())
    return found


def _references(root: Node, leaves: list[Node]) -> set[int]:
    """What the operators above the leaves read."""
    if any(root is leaf for leaf in leaves):
        return set()
    found = _read_by(root.jvm, [child.jvm for child in root.children])
    for child in root.children:
        found |= _references(child, leaves)
        if root.kind == "Union":
            found |= set(child.ids)
    return found


def _read_by(jvm: Any, stop: list[Any]) -> set[int]:
    found = {attribute.exprId().id() for attribute in sequence(jvm.references().toSeq())}
    for child in sequence(jvm.children()):
        if not any(child.equals(other) for other in stop):
            found |= _read_by(child, stop)
    return found


def _all(root: Node, leaves: list[Node], holds: Callable[[Node], bool]) -> bool:
    if any(root is leaf for leaf in leaves):
        return True
    return holds(root) and all(_all(child, leaves, holds) for child in root.children)


def _is_row_wise(root: Node, leaves: list[Node]) -> bool:
    return _all(root, leaves, lambda node: isinstance(node, _ROW_WISE))


def _is_moves_only(root: Node, leaves: list[Node]) -> bool:
    return _all(root, leaves, lambda node: isinstance(node, Map) and node.is_moves_only)
