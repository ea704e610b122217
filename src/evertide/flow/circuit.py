"""The circuit: table deltas in, view deltas out, one transaction at a time.

1. A script declares tables and views. Each view's plan is cut into parts: stages, aggregates (`Totals`) and top-k
   (`Top`), in an order in which each comes after those that it reads. Tables and the outputs of parts are collections.
2. A step sets the deltas of the tables, runs the parts in order, and returns the deltas of the views.
3. After that, all arrangements apply the deltas: during a step, look-ups see the rows before it. All work that can fail
   is prepared first, so a step that fails has changed nothing. If applying fails nevertheless, the state is
   inconsistent: the circuit refuses further steps, and must be restored from its last save.
4. If views cannot be computed, `ViewFailed` names them and the views built on them. The step can be repeated without
   them (`drop`). `evertide.flow.blame` finds out whether a row or Spark caused the error. Views that are added or
   recomputed later have another circuit.

`save` returns a manifest per arrangement. The name of an arrangement identifies its content, so a circuit of the same
script in another process finds it. If a saved state lacks an arrangement, it is damaged.

Threads: one thread at a time steps, saves or changes a circuit. Any thread may call `maintain` or read sizes meanwhile.
Circuits of one program share its plans, which are immutable, and the session. Circuits of one pipeline share the blob,
the cache of row groups (which has a lock) and the source of names for new parts (which never repeats a name).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from evertide.errors import EvertideError, InvalidInput, SparkAway, StateInconsistent, Unexpected
from evertide.errors.running_errors import name_views
from evertide.flow.aggregates.top import Top
from evertide.flow.aggregates.totals import Totals
from evertide.flow.blame import FailedSteps, SuspectedFailure, retry_step
from evertide.flow.collection import CircuitCollection, Leaf
from evertide.flow.leaf_rows import cancel_out
from evertide.flow.stage import Stage, find_lookups
from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.trace import cut_plan, find_shared
from evertide.flow.wide.step import WideInput, WideResult, WideStep, adopt_runs
from evertide.plan.algebra.nodes import Aggregate, Attribute, PlanNode, Scan, TopK
from evertide.plan.algebra.plan_columns import make_arrow_schema
from evertide.plan.catalyst.failure import check_spark, classify_error, describe_error, silence_traces
from evertide.plan.fragment.fragment import Fragment
from evertide.plan.program.program import Program
from evertide.plan.program.project import Project
from evertide.plan.program.view_function import ViewFunction
from evertide.rows.changes import DIFF, DIFF_FIELD, check_column, consolidate_delta
from evertide.rows.digest import carry_hashes
from evertide.store.blob import Blob
from evertide.store.memory import MemoryBlob
from evertide.store.paths import Name
from evertide.threads.steps import note_step
from evertide.threads.stopping import IsStopping, never_stopping

logger = logging.getLogger(__name__)

_CACHE_BYTES = 256 * 1024 * 1024


class CircuitState(msgspec.Struct, frozen=True):
    """The saved arrangements of a circuit, between two transactions."""

    arrangements: dict[str, ArrangementManifest]
    is_first: bool
    """Whether the circuit has not processed a transaction yet."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A computed step, not applied yet."""

    found: dict[str, pa.Table]
    """The deltas of the views."""
    calls: list[Callable[[], None]]
    """Apply the step."""


class Circuit:
    """The operators of a cohort's views, with the state that they keep."""

    def __init__(
        self,
        spark: SparkSession,
        script: str | Project,
        *,
        path: str = "SQL",
        functions: Sequence[ViewFunction] = (),
        program: Program | None = None,
        only: Iterable[str] | None = None,
        blob: Blob | None = None,
        cache: RowGroupCache | None = None,
        new_name: Callable[[], Name] | None = None,
        state: CircuitState | None = None,
        failed_steps: FailedSteps | None = None,
    ) -> None:
        """`program` is the parsed script, if there is one; `only` has the views to maintain, by default all.

        `new_name` returns names of parts that are unique on the blob; `state` is what a circuit of these views saved.
        `failed_steps` are those of the process.
        """
        self.program = Program(spark, script, path, functions=functions) if program is None else program
        self._context = self.program.catalog.session.sparkContext
        self._blob = MemoryBlob() if blob is None else blob
        self._cache = RowGroupCache(_CACHE_BYTES) if cache is None else cache
        self._new_name = make_name_source("circuit") if new_name is None else new_name
        self._saved = state
        self._failed_steps = FailedSteps() if failed_steps is None else failed_steps
        self.arrangements: dict[str, Arrangement] = {}
        self._failed: BaseException | None = None
        self._collections: dict[str, CircuitCollection] = {}
        """Tables and views by name."""
        self._by_node: dict[int, CircuitCollection] = {}
        self.parts: list[Stage | Top | Totals] = []
        """Each comes after those that it reads."""
        self._is_first = state is None or state.is_first
        for name, columns in self.program.tables.items():
            self._collections[name] = self._make_collection(name, columns)
        self.tables = {name: _make_user_schema(columns) for name, columns in self.program.tables.items()}
        chosen = self.program.views if only is None else set(only)
        needed = self.program.find_needed(chosen)
        for name, plan in self.program.views.items():
            if name in needed:
                self._shared = find_shared(plan)
                self._collections[name] = self._build(plan, name)
        self.views = {
            name: _make_user_schema(plan.output) for name, plan in self.program.views.items() if name in chosen
        }

    def step(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Process one transaction. The first also returns rows that views have without input, such as a count of 0."""
        if self._failed is not None:
            why = f"a transaction was applied only in part, because of {self._failed!r}"
            raise StateInconsistent(where=f"state of {name_views(self.views)}", why=why) from self._failed
        try:
            prepared = self._compute(deltas)
        except SuspectedFailure as error:
            logger.info("%s could not be computed, retrying: %s", name_views(error.views), error.why)
            prepared = retry_step(error, self._compute, self._check_spark, deltas, self._failed_steps)
        self._failed_steps.forget(self.views, deltas)
        self._apply(prepared)
        return prepared.found

    def describe_table(self, name: str) -> tuple[pa.Schema, pa.Schema]:
        """The columns of a table, and the same named by position."""
        return self.tables[name], self._collections[name].schema

    def compute_wide(self, given: WideInput) -> WideResult:
        """Compute the views from the content of their tables on executors, instead of the first step."""
        with silence_traces():
            found = WideStep(self._collections, self.parts, self.views, given).run()
        found.check_stored(self._blob)
        adopt_runs(found, self.arrangements)
        self._is_first = False
        return found

    def drop(self, views: Iterable[str]) -> None:
        """Stop maintaining these views; no remaining view may read them."""
        self.views = {name: schema for name, schema in self.views.items() if name not in set(views)}
        needed = self.program.find_needed(self.views)
        names = [*self.tables, *(name for name in self.program.views if name in needed)]
        self._collections = {name: self._collections[name] for name in names}
        kept = {id(each) for each in self._find_reached(self._collections.values())}
        self.parts = [each for each in self.parts if id(get_output(each)) in kept]
        owned = {id(one) for each in self._list_collections() for one in each.list_arrangements()}
        self.arrangements = {name: one for name, one in self.arrangements.items() if id(one) in owned}

    def save(self) -> CircuitState:
        """Write all state as parts, and return their manifests. Must not run during a step."""
        return CircuitState(
            {name: arrangement.save() for name, arrangement in self.arrangements.items()}, self._is_first
        )

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """Merge some runs; any thread may call this. False if there was nothing to merge."""
        done = [arrangement.maintain(is_stopping) for arrangement in self.arrangements.values()]
        return any(done)

    def _check_spark(self) -> frozenset[str]:
        return check_spark(self._context)

    def _compute(self, deltas: Mapping[str, pa.Table]) -> _Prepared:
        self._forget()  # deltas of a previous attempt
        try:
            for name, delta in deltas.items():
                table = self._find_table(name)
                rows = self._check_delta(name, delta)
                with self._suspecting(table):
                    table.set_delta(cancel_out(rows, name))
            with silence_traces():
                for each in self.parts:
                    with self._suspecting(get_output(each)):
                        each.run(is_first=self._is_first)
                        note_step()
            return self._prepare()
        except BaseException:
            self._forget()
            raise

    def _prepare(self) -> _Prepared:
        """Do all work that can fail, and change nothing."""
        found, calls = {}, []
        for name in self.views:
            with self._suspecting(self._collections[name]):
                found[name] = self._make_view_delta(name)
        for collection in self._list_collections():
            with self._suspecting(collection):
                calls += collection.prepare()
        return _Prepared(found, calls)

    @contextmanager
    def _suspecting(self, collection: CircuitCollection) -> Iterator[None]:
        """Raise `SuspectedFailure` for an error that a row of the collection, Spark or the query may have caused."""
        try:
            yield
        except EvertideError as error:
            if not isinstance(error, InvalidInput):
                raise
            self._raise_suspected(collection, error, None)  # a value that our own operators refuse
        except Exception as error:  # any class: a row or Spark may be the cause
            classified = classify_error(self._context, error)
            if classified is not None and not isinstance(classified, SparkAway):
                raise classified from error
            self._raise_suspected(collection, error, classified)

    def _raise_suspected(self, collection: CircuitCollection, error: Exception, away: SparkAway | None) -> NoReturn:
        """`away` says that Spark may be the cause."""
        views, why = self._find_views_on(collection), describe_error(error)
        if not views:
            raise error
        unclear = away or SparkAway(path=str(self._context.master), why=why)
        raise SuspectedFailure(views, why, unclear, is_certain=away is None) from error

    def _find_views_on(self, collection: CircuitCollection) -> tuple[str, ...]:
        """The views that read a collection, directly or indirectly."""
        return tuple(name for name in self.views if collection in self._find_reached([self._collections[name]]))

    def _find_reached(self, collections: Iterable[CircuitCollection]) -> list[CircuitCollection]:
        """These collections, and all collections that they read."""
        producers = {id(get_output(each)): each for each in self.parts}
        found: dict[int, CircuitCollection] = {}
        waiting = list(collections)
        while waiting:
            collection = waiting.pop()
            if id(collection) not in found:
                found[id(collection)] = collection
                waiting += _list_inputs(producers.get(id(collection)))
        return list(found.values())

    def _apply(self, prepared: _Prepared) -> None:
        try:
            for call in prepared.calls:
                call()
        except BaseException as error:
            self._failed = error
            raise
        self._is_first = False

    def _list_collections(self) -> list[CircuitCollection]:
        return [*(self._collections[name] for name in self.tables), *map(get_output, self.parts)]

    def _forget(self) -> None:
        for collection in self._list_collections():
            collection.forget()

    def _find_table(self, name: str) -> CircuitCollection:
        if name not in self.tables:
            raise InvalidInput(
                where=f"delta of {name!r}", why=f"the pipeline has no such table; it has {', '.join(self.tables)}"
            )
        return self._collections[name]

    def _check_delta(self, name: str, delta: pa.Table) -> pa.Table:
        schema = self.tables[name]
        if delta.schema.names != [*schema.names, DIFF]:
            why = f"the delta has the columns {delta.schema.names}, but must have {[*schema.names, DIFF]}"
            raise InvalidInput(where=f"delta of {name!r}", why=why)
        fields = [*schema, DIFF_FIELD]
        columns = [check_column(delta.column(at), field, f"delta of {name!r}") for at, field in enumerate(fields)]
        return pa.Table.from_arrays(columns, schema=self._collections[name].empty.schema)

    def _make_view_delta(self, name: str) -> pa.Table:
        """Each row once, in an order that depends only on the content, so equal deltas are bitwise equal tables."""
        delta = consolidate_delta(self._collections[name].delta, name)
        return carry_hashes(delta, delta.rename_columns([*self.views[name].names, DIFF]))

    def _make_collection(self, name: str, columns: tuple[Attribute, ...]) -> CircuitCollection:
        return CircuitCollection(name, make_arrow_schema(columns), self._arrange)

    def _arrange(self, name: str, schema: pa.Schema, key: tuple[str, ...]) -> Arrangement:
        """A new arrangement, or the one that was saved under this name."""
        parts: dict[str, Any] = {"blob": self._blob, "cache": self._cache, "new_name": self._new_name}
        if self._saved is None:
            arrangement = Arrangement(name, schema, key, **parts)
        else:
            arrangement = Arrangement.restore(self._find_manifest(name, schema, key), **parts)
        self.arrangements[name] = arrangement
        return arrangement

    def _find_manifest(self, name: str, schema: pa.Schema, key: tuple[str, ...]) -> ArrangementManifest:
        saved = self._saved.arrangements if self._saved is not None else {}
        found = saved.get(name)
        if found is None:
            raise Unexpected(
                where=f"arrangement {name!r}", why=f"the checkpoint has {len(saved)} arrangements, but not this one"
            )
        if found.key != key or not found.read_schema().equals(schema):
            raise Unexpected(
                where=f"arrangement {name!r}",
                why=f"the checkpoint has this arrangement with the key {found.key}, not {key}, or with other columns",
            )
        return found

    def _build(self, node: PlanNode, name: str) -> CircuitCollection:
        """Build the collection of a node's rows, and before it all collections that it reads."""
        if isinstance(node, Scan):
            return self._collections[node.collection]
        if id(node) in self._by_node:
            return self._by_node[id(node)]
        built: CircuitCollection
        if isinstance(node, Aggregate) and node.is_additive:
            inputs = self._build(node.children[0], f"{name}.i")
            built = Totals(name, node, inputs, self._arrange)
            self.parts.append(built)
        elif isinstance(node, TopK) and node.first is not None:
            inputs = self._build(node.children[0], f"{name}.i")
            fragment = Fragment(self.program.catalyst, node.first, node.children)
            built = Top(name, node, fragment, inputs, self._arrange)
            self.parts.append(built)
        else:
            built = self._build_stage(node, name)
        self._by_node[id(node)] = built
        return built

    def _build_stage(self, node: PlanNode, name: str) -> CircuitCollection:
        cut = cut_plan(node, self._shared)
        inputs = [self._build(leaf, f"{name}.{at}") for at, leaf in enumerate(cut.leaves)]
        keys = {attribute for _, attributes in find_lookups(cut) for attribute in attributes}
        fragment = Fragment(self.program.catalyst, node, cut.leaves, keys)
        leaves = [
            Leaf(collection, leaf, read)
            for collection, leaf, read in zip(inputs, cut.leaves, fragment.reads, strict=True)
        ]
        output = self._make_collection(name, node.output)
        self.parts.append(Stage(cut, fragment, leaves, output))
        return output


def make_name_source(writer: str) -> Callable[[], Name]:
    """A source of unique names of parts; the id of the writer must be unique."""
    numbers = count()
    return lambda: Name(writer, next(numbers), "parquet")


def get_output(part: Stage | Top | Totals) -> CircuitCollection:
    """The collection of the rows that a part computes."""
    return part.output if isinstance(part, Stage) else part


def _list_inputs(part: Stage | Top | Totals | None) -> Iterator[CircuitCollection]:
    if isinstance(part, Stage):
        yield from (leaf.collection for leaf in part.leaves)
    elif part is not None:
        yield part.inputs


def _make_user_schema(columns: tuple[Attribute, ...]) -> pa.Schema:
    positional = make_arrow_schema(columns)
    return pa.schema([field.with_name(column.name) for field, column in zip(positional, columns, strict=True)])
