"""A fragment of a plan, ready to run: Catalyst's own operators over leaves that are filled anew for each run.

A fragment is a tree of nodes from a root down to leaves, which stand for other collections. It is prepared once. A run
binds rows to the leaves of one or two copies of the tree, the old and the new, and yields the rows of both with the
sign as `__diff`: the difference of the two, not yet consolidated.

1. Only attributes that the fragment reads are bound; the rest of a leaf never leaves its arrangement.
2. Rows on the driver become a local relation in one partition, so that no exchange is left to plan; a fragment that
   looks at one row at a time is then computed by the optimizer itself, without any job.
3. Frames on executors (`Frame`) keep their partitions.
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
_LOCAL = "org.apache.spark.sql.catalyst.plans.logical.LocalRelation"
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


class Fragment:
    def __init__(self, catalyst: Catalyst, root: Node, leaves: Sequence[Node], keys: Set[int] = frozenset()) -> None:
        """`leaves` are nodes below the root, by identity, each at one place of the tree or more.

        `keys` are attributes of leaves that are read although the fragment itself does not.
        """
        self._catalyst = catalyst
        self.output = root.output
        self.schema = arrow_schema(root.output)
        self._leaves = list(leaves)
        references = _references(root, self._leaves) | set(root.ids) | keys
        self.reads: list[tuple[Attribute, ...]] = [_read(leaf, references) for leaf in leaves]
        self.schemas = [arrow_schema(read) for read in self.reads]
        self._attributes = [self._attributes_of(leaf, read) for leaf, read in zip(leaves, self.reads, strict=True)]
        self._structs = [self._struct(read) for read in self._attributes]
        self._tree = self._tree_of(root.jvm, root)
        self.is_row_wise = _is_row_wise(root, self._leaves)
        self.is_moves_only = _is_moves_only(root, self._leaves)

    def run(self, terms: Sequence[tuple[int, Sequence[Bound]]]) -> pa.Table:
        """Of each term the rows that the tree makes of its leaves, times its sign; on the driver."""
        if self.is_row_wise and all(isinstance(rows, pa.Table) for _, leaves in terms for rows in leaves):
            found = [self._signed(self._collect(self._bind(leaves, is_local=True)), sign) for sign, leaves in terms]
            return pa.concat_tables(found)
        return self._collect_signed(terms)

    def frame(self, terms: Sequence[tuple[int, Sequence[Bound]]]) -> Any:
        """The same as a plan that is not run: its output is the fragment's, then the sign."""
        trees = [self._with_sign(self._bind(leaves, is_local=False), sign) for sign, leaves in terms]
        return self._catalyst.union(trees)

    def _collect_signed(self, terms: Sequence[tuple[int, Sequence[Bound]]]) -> pa.Table:
        found = self._rows(self.frame(terms))
        return found.cast(pa.schema([*self.schema, pa.field(DIFF, pa.int64(), nullable=False)]))

    def _collect(self, plan: Any) -> pa.Table:
        return self._rows(plan).cast(self.schema)

    def _rows(self, plan: Any) -> pa.Table:
        plan.setAnalyzed()
        frame = self._catalyst.companion("org.apache.spark.sql.classic.Dataset").ofRows(self._catalyst.session, plan)
        rows = frame.queryExecution().executedPlan().executeCollectIterator()._2()
        batches = self._catalyst.companion(_ARROW).toBatchWithSchemaIterator(
            rows,
            frame.schema(),
            _ROWS_MAX,
            _ROWS_MAX,
            _TIME_ZONE,
            *_NO,
        )
        columns = [f"c{at}" for at in range(frame.schema().size())]
        if not batches.hasNext():
            return self._empty(columns)
        found = pa.concat_tables(_tables(batches))
        return found.rename_columns(columns if len(columns) == len(self.output) else [*columns[:-1], DIFF])

    def _empty(self, columns: list[str]) -> pa.Table:
        if len(columns) == len(self.output):
            return self.schema.empty_table()
        return pa.schema([*self.schema, pa.field(DIFF, pa.int64(), nullable=False)]).empty_table()

    def _signed(self, rows: pa.Table, sign: int) -> pa.Table:
        diffs = pa.array(np.full(rows.num_rows, sign, np.int64))
        return rows.append_column(pa.field(DIFF, pa.int64(), nullable=False), diffs)

    def _with_sign(self, plan: Any, sign: int) -> Any:
        columns = [*sequence(plan.output()), self._catalyst.alias(self._catalyst.long(sign), DIFF)]
        return self._catalyst.project(columns, plan)

    def _bind(self, leaves: Sequence[Bound], *, is_local: bool) -> Any:
        bound = [self._leaf(at, rows, is_local=is_local) for at, rows in enumerate(leaves)]
        is_small = all(isinstance(rows, pa.Table) for rows in leaves)
        return self._build(self._tree, bound, is_small=is_small)

    def _build(self, tree: _Tree, bound: list[Any], *, is_small: bool) -> Any:
        if tree.leaf >= 0:
            return bound[tree.leaf]
        children = [self._build(child, bound, is_small=is_small) for child in tree.below]
        if is_small and kind(tree.jvm) == "RepartitionByExpression":
            return children[0]
        return self._catalyst.with_children(tree.jvm, children)

    def _leaf(self, at: int, rows: Bound, *, is_local: bool) -> Any:
        if isinstance(rows, Frame):
            return self._framed(at, rows.frame)
        relation = self._relation(at, rows)
        return relation if is_local else self._catalyst.one_partition(relation)

    def _relation(self, at: int, rows: pa.Table) -> Any:
        converters = self._catalyst.companion(_ARROW)
        rows = pa.Table.from_arrays(rows.columns, schema=self.schemas[at]).combine_chunks()
        batches = [batch.serialize().to_pybytes() for batch in rows.to_batches()]
        if not batches:
            return self._catalyst.local(self._attributes[at])
        made = converters.toDataFrame(
            self._catalyst.iterator(batches),
            self._structs[at],
            self._catalyst.session,
            _TIME_ZONE,
            *_NO,
        )
        attributes = self._catalyst.seq(self._attributes[at])
        return self._catalyst.companion(_LOCAL).apply(
            attributes,
            made.queryExecution().analyzed().data(),
            _NO[0],
            self._catalyst.none,
        )

    def _framed(self, at: int, frame: DataFrame) -> Any:
        plan = frame._jdf.queryExecution().analyzed()
        columns = [
            self._catalyst.alias(column, attribute.name(), attribute.exprId())
            for column, attribute in zip(sequence(plan.output()), self._attributes[at], strict=True)
        ]
        return self._catalyst.project(columns, plan)

    def _attributes_of(self, leaf: Node, read: tuple[Attribute, ...]) -> list[Any]:
        by_id = {attribute.exprId().id(): attribute for attribute in sequence(leaf.jvm.output())}
        return [by_id[attribute.id] for attribute in read]

    def _struct(self, attributes: list[Any]) -> Any:
        return self._catalyst.local(attributes).schema()

    def _tree_of(self, jvm: Any, node: Node) -> _Tree:
        """Operators of Catalyst between a node and its children (a Sort, a Project) are the node's own."""
        if any(node is leaf for leaf in self._leaves):
            return _Tree(jvm, leaf=next(at for at, leaf in enumerate(self._leaves) if leaf is node))
        return self._inside(jvm, list(node.children))

    def _inside(self, jvm: Any, children: list[Node]) -> _Tree:
        below = []
        for child in sequence(jvm.children()):
            known = next((node for node in children if node.jvm.equals(child)), None)
            below.append(self._inside(child, children) if known is None else self._tree_of(child, known))
        return _Tree(jvm, tuple(below))


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
