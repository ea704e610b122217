"""The circuit: table deltas in, view deltas out, one transaction at a time.

1. A script declares tables and views. Each view's plan is cut into stages; stages, groups and tables are collections,
   in an order in which each comes after those that it reads.
2. A step gives the tables their deltas, runs the collections in order, and takes the deltas of the views.
3. Only then do all arrangements take the deltas in: during a step, look-ups see the rows before it. A step that fails
   while it computes changes nothing. One that fails while it takes deltas in leaves state that is neither old nor new:
   the circuit then refuses to go on, and is restored from what was saved.
4. A view that a row makes fail is named, with those built on it (`ViewFailed`): without them (`drop`), the step may be
   made again. Where the error does not tell whether it is a row's, it is found out (`evertide.flow.blame`). Views that
   are added later, or come back, have a circuit of their own beside this one.

What is saved is a manifest per arrangement, by name: names say what is arranged, so that a circuit of the same script,
in another process, finds its own. An arrangement that is not among the saved ones is damage, not something new.

Threads: one thread at a time steps, saves or changes a circuit; a backfill steps its own beside the transactions'. Any
thread may `maintain` it, or look at its arrangements, meanwhile. Circuits of one program share its plans, which never
change, and the session; those of one pipeline share the blob, the cache of row groups (which has a lock) and the maker
of names for new parts (it gives each name once).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from evertide.errors import Damaged, EvertideError, InvalidInput, SparkAway, ViewFailed
from evertide.flow.aggregates.top import Top
from evertide.flow.aggregates.totals import Totals
from evertide.flow.blame import SuspectedFailure, retry_step
from evertide.flow.collection import Collection, Leaf
from evertide.flow.leaf_rows import cancel_out
from evertide.flow.stage import Stage, find_lookups
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.manifest import Manifest
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.trace import cut_plan, find_shared
from evertide.plan.algebra.nodes import Aggregate, Attribute, Node, Scan, TopK
from evertide.plan.catalyst.columns import arrow_schema
from evertide.plan.catalyst.failure import check_spark, classify_error, describe_error, silence_traces
from evertide.plan.fragment.fragment import Fragment
from evertide.plan.program.program import Program
from evertide.plan.program.project import Project
from evertide.plan.program.view_function import ViewFunction
from evertide.rows.changes import DIFF, check_column, net
from evertide.store.blob import Blob
from evertide.store.memory import MemoryBlob
from evertide.store.paths import Name
from evertide.threads.steps import note_step
from evertide.threads.stopping import IsStopping, never_stopping

__all__ = ["Circuit", "CircuitState", "new_names"]

logger = logging.getLogger(__name__)

_CACHE_BYTES = 256 * 1024 * 1024
_DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)


class CircuitState(msgspec.Struct, frozen=True):
    """All arrangements of a circuit, between two transactions."""

    arrangements: dict[str, Manifest]
    is_first: bool
    """Whether no transaction was taken yet."""


class Circuit:
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
    ) -> None:
        """`program` is the script's, if it was read before; `only` are the views to yield, if not all.

        `new_name` names a new part as nobody else on the blob does; `state` is what another circuit of these saved.
        """
        self.program = Program(spark, script, path, functions=functions) if program is None else program
        self._context = self.program.catalog.session.sparkContext
        self._blob = MemoryBlob() if blob is None else blob
        self._cache = RowGroupCache(_CACHE_BYTES) if cache is None else cache
        self._new_name = new_names("circuit") if new_name is None else new_name
        self._saved = state
        self.arrangements: dict[str, Arrangement] = {}
        self._failed: BaseException | None = None
        self._collections: dict[str, Collection] = {}
        """Tables and views by name."""
        self._by_node: dict[int, Collection] = {}
        self.order: list[Stage | Top | Totals] = []
        self._is_first = state is None or state.is_first
        for name, columns in self.program.tables.items():
            self._collections[name] = self._make_collection(name, columns)
        self.tables = {name: _user_schema(columns) for name, columns in self.program.tables.items()}
        chosen = self.program.views if only is None else set(only)
        needed = self.program.find_needed(chosen)
        for name, plan in self.program.views.items():
            if name in needed:
                self._shared = find_shared(plan)
                self._collections[name] = self._build(plan, name)
        self.views = {name: _user_schema(plan.output) for name, plan in self.program.views.items() if name in chosen}

    def step(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """One transaction. The first also brings what views hold without any input, as the count of nothing."""
        if self._failed is not None:
            why = f"a transaction was taken in by half, as {self._failed!r} came in between"
            raise Damaged(path="state of the circuit", why=why) from self._failed
        try:
            found = self._compute(deltas)
        except SuspectedFailure as error:
            logger.warning("the views %s could not be computed, and are tried again: %s", error.views, error.why)
            found = retry_step(error, self._retry, self._check_spark, deltas)
        self._settle()
        return found

    def fails(self, deltas: Mapping[str, pa.Table]) -> bool:
        """Whether Spark says that a row of this transaction would make a view fail; nothing is taken in."""
        try:
            self._compute(deltas)
        except ViewFailed:
            return True
        except SuspectedFailure:
            return False
        self._forget()
        return False

    def drop(self, views: Iterable[str]) -> None:
        """Go on without these views, which are not built upon by others that stay."""
        self.views = {name: schema for name, schema in self.views.items() if name not in set(views)}
        needed = self.program.find_needed(self.views)
        names = [*self.tables, *(name for name in self.program.views if name in needed)]
        self._collections = {name: self._collections[name] for name in names}
        kept = {id(each) for each in self._find_reached(self._collections.values())}
        self.order = [each for each in self.order if id(_output_of(each)) in kept]
        owned = {id(one) for each in self._list_collections() for one in each.list_arrangements()}
        self.arrangements = {name: one for name, one in self.arrangements.items() if id(one) in owned}

    def save(self) -> CircuitState:
        """Make everything durable, and say where it is. Not beside a step."""
        return CircuitState({name: kept.save() for name, kept in self.arrangements.items()}, self._is_first)

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        """One step towards few runs per arrangement, for any thread; False if there was nothing to do."""
        done = [kept.maintain(is_stopping) for kept in self.arrangements.values()]
        return any(done)

    def compact(self) -> None:
        for kept in self.arrangements.values():
            kept.compact()

    def _retry(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        self._forget()  # what a try before has left
        return self._compute(deltas)

    def _check_spark(self) -> None:
        check_spark(self._context)

    def _compute(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        try:
            for name, delta in deltas.items():
                table = self._table(name)
                table.delta = self._check_delta(name, delta)
            with silence_traces():
                for each in self.order:
                    self._run(each)
            return {name: self._make_view_delta(name) for name in self.views}
        except BaseException:
            self._forget()
            raise

    def _run(self, part: Stage | Top | Totals) -> None:
        try:
            part.run(is_first=self._is_first)
            note_step()
        except PythonException as error:  # a function may fail because of a row, or of what it reaches
            away = SparkAway(path=str(self._context.master), why=describe_error(error))
            raise SuspectedFailure(
                self._find_views_on(_output_of(part)), describe_error(error), away, is_from_function=True
            ) from error
        except (PySparkException, InvalidInput) as error:
            raise ViewFailed(views=self._find_views_on(_output_of(part)), time=-1, why=describe_error(error)) from error
        except EvertideError:
            raise
        except Exception as error:  # of any class: a row may be to blame, or Spark
            told = classify_error(self._context, error)
            if told is None or isinstance(told, SparkAway):
                raise SuspectedFailure(
                    self._find_views_on(_output_of(part)), describe_error(error), told or error
                ) from error
            raise told from error

    def _find_views_on(self, collection: Collection) -> tuple[str, ...]:
        """The views that are made of a collection, directly or not."""
        return tuple(name for name in self.views if collection in self._find_reached([self._collections[name]]))

    def _find_reached(self, collections: Iterable[Collection]) -> list[Collection]:
        """These, and all that they are made of."""
        producers = {id(_output_of(each)): each for each in self.order}
        found: dict[int, Collection] = {}
        waiting = list(collections)
        while waiting:
            collection = waiting.pop()
            if id(collection) not in found:
                found[id(collection)] = collection
                waiting += _inputs_of(producers.get(id(collection)))
        return list(found.values())

    def _settle(self) -> None:
        """If storage or the system refuses something, nothing is taken in, and the step may be made again."""
        try:
            calls = [call for collection in self._list_collections() for call in collection.prepare()]
        except BaseException:
            self._forget()
            raise
        try:
            for call in calls:
                call()
        except BaseException as error:
            self._failed = error
            raise
        self._is_first = False

    def _list_collections(self) -> list[Collection]:
        return [*(self._collections[name] for name in self.tables), *map(_output_of, self.order)]

    def _forget(self) -> None:
        for collection in self._list_collections():
            collection.forget()

    def _table(self, name: str) -> Collection:
        if name not in self.tables:
            raise InvalidInput(where=f"delta of {name!r}", why=f"is no table of the pipeline; it has {[*self.tables]}")
        return self._collections[name]

    def _check_delta(self, name: str, delta: pa.Table) -> pa.Table:
        schema = self.tables[name]
        if delta.schema.names != [*schema.names, DIFF]:
            why = f"has the columns {delta.schema.names}, but the table has {[*schema.names, DIFF]}"
            raise InvalidInput(where=f"delta of {name!r}", why=why)
        fields = [*schema, _DIFF_FIELD]
        columns = [check_column(delta.column(at), field, f"delta of {name!r}") for at, field in enumerate(fields)]
        return cancel_out(pa.Table.from_arrays(columns, schema=self._collections[name].empty.schema), name)

    def _make_view_delta(self, name: str) -> pa.Table:
        """Each row once, in an order that the content decides: the same delta is the same table, bit for bit."""
        return net(self._collections[name].delta, name).rename_columns([*self.views[name].names, DIFF])

    def _make_collection(self, name: str, columns: tuple[Attribute, ...]) -> Collection:
        return Collection(name, arrow_schema(columns), self._arrange)

    def _arrange(self, name: str, schema: pa.Schema, key: tuple[str, ...]) -> Arrangement:
        """A new one, or what was saved under the name."""
        parts: dict[str, Any] = {"blob": self._blob, "cache": self._cache, "new_name": self._new_name}
        if self._saved is None:
            made = Arrangement(name, schema, key, **parts)
        else:
            made = Arrangement.restore(self._find_manifest(name, schema, key), **parts)
        self.arrangements[name] = made
        return made

    def _find_manifest(self, name: str, schema: pa.Schema, key: tuple[str, ...]) -> Manifest:
        saved = self._saved.arrangements if self._saved is not None else {}
        found = saved.get(name)
        if found is None:
            raise Damaged(path=f"arrangement {name!r}", why=f"is not among the {len(saved)} saved ones")
        if found.key != key or not found.arrow_schema().equals(schema):
            raise Damaged(path=f"arrangement {name!r}", why=f"was saved with the key {found.key} and other columns")
        return found

    def _build(self, node: Node, name: str) -> Collection:
        """The collection of a node's rows, with all that it needs before it."""
        if isinstance(node, Scan):
            return self._collections[node.collection]
        if id(node) in self._by_node:
            return self._by_node[id(node)]
        made: Collection
        if isinstance(node, Aggregate) and node.is_additive:
            inputs = self._build(node.children[0], f"{name}.i")
            made = Totals(name, node, inputs, self._arrange)
            self.order.append(made)
        elif isinstance(node, TopK) and node.first is not None:
            inputs = self._build(node.children[0], f"{name}.i")
            fragment = Fragment(self.program.catalyst, node.first, node.children)
            made = Top(name, node, fragment, inputs, self._arrange)
            self.order.append(made)
        else:
            made = self._build_stage(node, name)
        self._by_node[id(node)] = made
        return made

    def _build_stage(self, node: Node, name: str) -> Collection:
        cut = cut_plan(node, self._shared)
        inputs = [self._build(leaf, f"{name}.{at}") for at, leaf in enumerate(cut.leaves)]
        keys = {attribute for _, attributes in find_lookups(cut) for attribute in attributes}
        fragment = Fragment(self.program.catalyst, node, cut.leaves, keys)
        leaves = [
            Leaf(collection, leaf, read)
            for collection, leaf, read in zip(inputs, cut.leaves, fragment.reads, strict=True)
        ]
        output = self._make_collection(name, node.output)
        self.order.append(Stage(cut, fragment, leaves, output))
        return output


def new_names(writer: str) -> Callable[[], Name]:
    """Names of parts that nobody else makes, as long as the writer's id is its own."""
    numbers = count()
    return lambda: Name(writer, next(numbers), "parquet")


def _output_of(part: Stage | Top | Totals) -> Collection:
    return part.output if isinstance(part, Stage) else part


def _inputs_of(part: Stage | Top | Totals | None) -> Iterator[Collection]:
    if isinstance(part, Stage):
        yield from (leaf.collection for leaf in part.leaves)
    elif part is not None:
        yield part.inputs


def _user_schema(columns: tuple[Attribute, ...]) -> pa.Schema:
    positional = arrow_schema(columns)
    return pa.schema([field.with_name(column.name) for field, column in zip(positional, columns, strict=True)])
