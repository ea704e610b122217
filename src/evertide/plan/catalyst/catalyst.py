"""Builds Catalyst's operators and expressions from Python, and runs plans.

Handles of Scala's companion objects are looked up once per `Catalyst`, since each look-up is a call to the JVM.
Operators that Spark created are copied with other children, never rebuilt. A method with the name of an operator or
expression of Catalyst (`project`, `window`, `literal`) builds it.

Threads: all circuits of a program share one `Catalyst` and run fragments concurrently.

1. A `Catalyst` is immutable, except for cached handles; two threads that look up the same handle find the same object.
2. Each call uses its own scratch files.
3. The active session belongs to the JVM's thread, and each Python thread has its own (`evertide.plan.catalyst.session`
   checks this).
4. A run over many rows changes one setting of its session, the number of partitions, to Spark's current parallelism.
   Threads may do so at the same time, since a plan is correct with any number.
"""

from __future__ import annotations

import json
import struct as binary
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from evertide.plan.catalyst.parsed import load_class
from evertide.plan.catalyst.walk import read_list
from evertide.scratch import scratch_file, using_scratch

_PLANS = "org.apache.spark.sql.catalyst.plans"
_LOGICAL = f"{_PLANS}.logical"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_ARROW = "org.apache.spark.sql.execution.arrow"
_EXECUTION = "org.apache.spark.sql.execution"
_TIME_ZONE = "UTC"
"""The time zone of timestamps in Arrow; instants do not depend on it."""
_NO = (False, False)
"""Arguments of ArrowConverters: names may repeat, strings have 32-bit offsets."""
_LARGE = {
    "spark.sql.autoBroadcastJoinThreshold": "10MB",
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


class Catalyst:
    """Access to the Catalyst classes of one Spark session's JVM."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session._jsparkSession
        self.context = session.sparkContext
        self._gateway = session._sc._gateway
        self._jvm = session._jvm
        self._objects: dict[str, Any] = {}
        # Each step of a name like `jvm.java.util` is a call to the JVM, so whole names are looked up once.
        self._array_list = self._jvm.java.util.ArrayList
        self._converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        self._option = self._jvm.scala.Option
        self._java_context = self._jvm.org.apache.spark.api.java.JavaSparkContext
        self._logical_rdd = self._jvm.org.apache.spark.sql.execution.LogicalRDD
        self._unknown_partitioning = self._jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning
        self._python_utils = self._jvm.org.apache.spark.sql.api.python.PythonSQLUtils
        self._python_rdd = self._jvm.org.apache.spark.api.python.PythonRDD
        self._data_output = self._jvm.java.io.DataOutputStream
        self._file_output = self._jvm.java.io.FileOutputStream
        self._cloning = threading.Lock()
        self._large_session: SparkSession | None = None
        self._sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        self._nil = self.companion("scala.collection.immutable.Nil")
        self.none = self._option.empty()

    def companion(self, path: str) -> Any:
        """The Scala companion object with this name."""
        if path not in self._objects:
            self._objects[path] = self._jvm.java.lang.Class.forName(f"{path}$").getField("MODULE$").get(None)
        return self._objects[path]

    def make_some(self, value: Any) -> Any:
        return self._option.apply(value)

    def seq(self, values: Iterable[Any]) -> Any:
        """A Scala list."""
        scala_list = self._nil
        for value in reversed(list(values)):
            scala_list = getattr(scala_list, "$colon$colon")(value)
        return scala_list

    # Operators.

    def project(self, columns: Iterable[Any], child: Any) -> Any:
        return self.companion(f"{_LOGICAL}.Project").apply(self.seq(columns), child)

    def filter(self, condition: Any, child: Any) -> Any:
        return self.companion(f"{_LOGICAL}.Filter").apply(condition, child)

    def join(self, left: Any, right: Any, kind: str, condition: Any | None) -> Any:
        """`kind` is the name of a join type that is a Scala object: Inner, LeftOuter, ..."""
        hint = self.companion(f"{_LOGICAL}.JoinHint").NONE()
        condition = self.none if condition is None else self.make_some(condition)
        return self.companion(f"{_LOGICAL}.Join").apply(
            left, right, self.companion(f"{_PLANS}.{kind}"), condition, hint
        )

    def aggregate(self, keys: Iterable[Any], columns: Iterable[Any], child: Any) -> Any:
        operator = self.companion(f"{_LOGICAL}.Aggregate")
        return operator.apply(self.seq(keys), self.seq(columns), child, self.none)

    def window(self, columns: Iterable[Any], partition: Any, order: Iterable[Any], child: Any) -> Any:
        operator = self.companion(f"{_LOGICAL}.Window")
        return operator.apply(self.seq(columns), partition, self.seq(order), child, self.none)

    def sort(self, order: Iterable[Any], child: Any, *, is_global: bool) -> Any:
        return self.companion(f"{_LOGICAL}.Sort").apply(self.seq(order), is_global, child, self.none)

    def union(self, children: list[Any]) -> Any:
        if len(children) == 1:
            return children[0]
        return self.companion(f"{_LOGICAL}.Union").apply(self.seq(children), False, False)  # noqa: FBT003

    def limit(self, rows: int, child: Any) -> Any:
        local = self.companion(f"{_LOGICAL}.LocalLimit").apply(self.literal(rows), child)
        return self.companion(f"{_LOGICAL}.GlobalLimit").apply(self.literal(rows), local)

    def make_placeholder(self, attributes: Any) -> Any:
        """A relation that the optimizer knows nothing about, identified by the id of its RDD."""
        context = self._java_context.fromSparkContext(self.session.sparkContext())
        return self._make_rdd_relation(attributes, context.emptyRDD().rdd(), self.session, self.none)

    def _make_rdd_relation(self, attributes: Any, rdd: Any, session: Any, statistics: Any) -> Any:
        partitioning, no = self._unknown_partitioning(0), False
        return self._logical_rdd(
            attributes, rdd, partitioning, self._nil, no, self.none, session, statistics, self.none, no
        )

    def optimize(self, plan: Any) -> Any:
        plan.setAnalyzed()
        with self._activate(self.session):
            return self.session.sessionState().optimizer().execute(plan)

    def make_local_runner(self, *parts: Any) -> Any:
        """A new `LocalRunner` in the JVM (`evertide.plan.fragment.local_runner`)."""
        return self._local_runner_constructor.newInstance(self._make_array([self.session, *parts]))

    def _make_array(self, values: list[Any]) -> Any:
        """A Java array of objects."""
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array

    @cached_property
    def _local_runner_constructor(self) -> Any:
        return load_class(self.session, "evertide.plan.fragment", "LocalRunner").getConstructors()[0]

    def make_java_list(self, values: Iterable[Any]) -> Any:
        java_list = self._array_list()
        for value in values:
            java_list.add(value)
        return java_list

    def _read_arrays(self, arrays: Any) -> Iterator[pa.Buffer]:
        """Read the byte arrays of a Scala iterator through a file."""
        with scratch_file() as path:
            stream = self._data_output(self._file_output(str(path)))
            try:
                self._python_rdd.writeIteratorToStream(arrays, stream)
            finally:
                stream.close()
            return split_frames(read_scratch(path))

    def spread(self, rows: pa.Table, attributes: Any, struct: Any) -> Any:
        """A partitioned relation of rows, with its size for the planner.

        Rows go through a file, since py4j transfers bytes slowly.
        """
        partitions = self._set_partitions()
        with scratch_file() as path:
            with (
                using_scratch(),
                pa.OSFile(str(path), "wb") as file,
                pa.ipc.new_stream(file, rows.schema) as stream,
            ):
                stream.write_table(rows.combine_chunks(), max_chunksize=-(-rows.num_rows // partitions))
            batches = self._python_utils.readArrowStreamFromFile(str(path))
        frame = self.companion(f"{_ARROW}.ArrowConverters").toDataFrame(batches, struct, self._large, _TIME_ZONE, *_NO)
        rdd, statistics = frame.queryExecution().logical().rdd(), self.make_some(self._make_statistics(rows.nbytes))
        return self._make_rdd_relation(attributes, rdd, self._large, statistics)

    def make_arrow_relation(self, batches: Any, attributes: Any, struct: Any, size: int) -> Any:
        """A partitioned relation of the rows in a Java RDD of Arrow batches, with its size for the planner."""
        frame = self.companion("org.apache.spark.sql.api.r.SQLUtils").toDataFrame(batches, struct, self._large)
        rdd, statistics = frame.queryExecution().logical().rdd(), self.make_some(self._make_statistics(size))
        return self._make_rdd_relation(attributes, rdd, self._large, statistics)

    def make_batch_maker(self, struct: Any) -> tuple[Any, pa.Schema]:
        """For `compute_batches` of plans with these columns; and the schema of the batches."""
        frame = self._collecting.createDataFrame(self._array_list(), struct)
        empty = self.companion(f"{_ARROW}.ArrowConverters").createEmptyArrowBatch(struct, _TIME_ZONE, *_NO)
        return frame, pa.ipc.open_stream(empty).schema

    def compute_batches(self, plan: Any, frame: Any, partitions: int = 0) -> Any:
        """A Java RDD of Arrow batches with the rows of an optimized plan, in at least this number of partitions after
        an exchange. Some stages of the plan may run at once."""
        with self._activate(self._large):
            self._set_partitions(partitions)
            ready = self.companion(f"{_EXECUTION}.QueryExecution").prepareExecutedPlan(self._large, plan)
            return frame.toArrowBatchRdd(ready).toJavaRDD()

    def _set_partitions(self, least: int = 0) -> int:
        """Set the number of partitions of exchanges, since the number of executors changes."""
        partitions = max(least, int(self._large.sparkContext().defaultParallelism()))
        self._large.conf().set("spark.sql.shuffle.partitions", str(partitions))
        return partitions

    def _make_statistics(self, size: int) -> Any:
        """Statistics with this size: those of a Range, since py4j cannot create a `BigInt`."""
        return self.companion(f"{_LOGICAL}.Range").apply(0, size // 8 + 1, 1, 1).stats()

    def make_collector(self, struct: Any) -> Callable[[Any], pa.Table]:
        """A function that runs optimized plans with these columns on the executors and collects Arrow rows."""
        frame, schema = self.make_batch_maker(struct)

        def collect(plan: Any) -> pa.Table:
            batches = self.compute_batches(plan, frame).collect()
            found = self._read_arrays(self._converters.asScala(batches.iterator()))
            return pa.Table.from_batches([pa.ipc.read_record_batch(batch, schema) for batch in found], schema)

        return collect

    @property
    def _large(self) -> Any:
        """The session for many rows: result settings as in `session`, and Spark's defaults for large inputs."""
        with self._cloning:
            if self._large_session is None:
                clone = self.session.cloneSession()
                for name, value in _LARGE.items():
                    clone.conf().set(name, value)
                self._large_session = SparkSession(self.context, jsparkSession=clone)
            return self._large_session._jsparkSession

    @cached_property
    def _collecting(self) -> Any:
        """The session that collects rows, in which two fields of a struct may have the same name. It plans nothing, so
        the setting does not change what functions of pandas get."""
        clone = self._large.cloneSession()
        clone.conf().set("spark.sql.execution.pandas.structHandlingMode", "row")
        return clone

    @contextmanager
    def _activate(self, session: Any) -> Iterator[None]:
        """Make a session the active one of the thread, from which Spark reads settings."""
        before = self._sessions.getActiveSession()
        self._sessions.setActiveSession(session)
        try:
            yield
        finally:
            if before.isDefined():
                self._sessions.setActiveSession(before.get())
            else:
                self._sessions.clearActiveSession()

    def offset(self, rows: int, child: Any) -> Any:
        return self.companion(f"{_LOGICAL}.Offset").apply(self.literal(rows), child)

    def make_empty_relation(self, attributes: Iterable[Any]) -> Any:
        """An empty relation with these attributes."""
        return self.companion(f"{_LOGICAL}.LocalRelation").apply(self.seq(attributes), self.seq([]), False, self.none)  # noqa: FBT003

    def cluster(self, by: list[Any], child: Any) -> Any:
        """Put rows that agree in `by` into one partition; all rows if `by` is empty."""
        operator = self.companion(f"{_LOGICAL}.RepartitionByExpression")
        return operator.apply(self.seq(by), child, self.none if by else self.make_some(1), self.none)

    def replace_children(self, tree: Any, children: list[Any]) -> Any:
        """Copy an operator or expression with other children; without children it is returned as it is."""
        return tree.withNewChildren(self.seq(children)) if children else tree

    # Expressions.

    def literal(self, value: Any) -> Any:
        return self.companion(f"{_EXPRESSIONS}.Literal").apply(value)

    def make_long(self, value: int) -> Any:
        """A BIGINT literal, made by the parser, since py4j passes small integers as INT."""
        return self.session.sessionState().sqlParser().parseExpression(f"{value}L")

    def alias(self, expression: Any, name: str, expr_id: Any | None = None) -> Any:
        companion = self.companion(f"{_EXPRESSIONS}.Alias")
        empty = self.seq([])
        expr_id = self.make_id() if expr_id is None else expr_id
        return companion.apply(expression, name, expr_id, empty, self.none, empty)

    def make_id(self) -> Any:
        return self.companion(f"{_EXPRESSIONS}.NamedExpression").newExprId()

    def make_ascending(self, expression: Any) -> Any:
        companion = self.companion(f"{_EXPRESSIONS}.SortOrder")
        return companion.apply(expression, self.companion(f"{_EXPRESSIONS}.Ascending"), self.seq([]))

    def normalize(self, expression: Any) -> Any:
        """Normalize floats to one NaN and one zero, as Spark does for groups."""
        return self.companion("org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers").normalize(expression)

    def count_rows(self) -> Any:
        return self.aggregate_expression(self.expression("aggregate.Count", self.seq([self.literal(1)])))

    def is_collated(self, data_type: Any) -> bool:
        """Whether the type has texts, perhaps nested, that can be equal with different bytes."""
        return not self._jvm.org.apache.spark.sql.catalyst.util.UnsafeRowUtils.isBinaryStable(data_type)

    def cast(self, expression: Any, to: str) -> Any:
        """`to` is the name of a type that is a Scala object: StringType, BinaryType."""
        companion, legacy = self.companion(f"{_EXPRESSIONS}.Cast"), self.companion(f"{_EXPRESSIONS}.EvalMode").LEGACY()
        zone = self.session.sessionState().conf().sessionLocalTimeZone()
        return companion.apply(
            expression, self.companion(f"org.apache.spark.sql.types.{to}"), self.make_some(zone), legacy
        )

    def struct(self, fields: Iterable[Any]) -> Any:
        """A struct with fields f0, f1, and so on."""
        named = [part for at, value in enumerate(fields) for part in (self.literal(f"f{at}"), value)]
        return self.expression("CreateNamedStruct", self.seq(named))

    def get_field(self, struct: Any, at: int) -> Any:
        return self.expression("GetStructField", struct, at, self.none)

    def is_orderable(self, data_type: Any) -> bool:
        return _is_orderable(json.loads(data_type.json()))

    def expression(self, name: str, *arguments: Any) -> Any:
        """An expression by the name of its class below `catalyst.expressions`."""
        return self.companion(f"{_EXPRESSIONS}.{name}").apply(*arguments)

    @cached_property
    def numeric_context(self) -> Any:
        """For sums and arithmetic that cannot overflow."""
        mode = self.companion(f"{_EXPRESSIONS}.EvalMode").LEGACY()
        return self.expression("NumericEvalContext", mode, False)  # noqa: FBT003

    def call_static(self, java_class: str, method: str, argument: Any) -> Any:
        """A call of a static method that takes and returns a number; NULL of NULL."""
        kinds = {"Long": "LongType", "Int": "IntegerType"}
        returned = next(kind for name, kind in kinds.items() if method.endswith(f"{name}Bits"))
        return self.expression(
            "objects.StaticInvoke",
            self._jvm.java.lang.Class.forName(java_class),
            self.companion(f"org.apache.spark.sql.types.{returned}"),
            method,
            self.seq([argument]),
            self.seq([]),
            True,  # noqa: FBT003 - NULL of NULL
            argument.nullable(),
            True,  # noqa: FBT003 - deterministic
            self.none,
        )

    # Rewriting takes one call to the JVM per step, so it is done only when a view is declared.

    def is_expression(self, value: Any) -> bool:
        return bool(is_instance_of(self._gateway, value, f"{_EXPRESSIONS}.Expression"))

    def map_expressions(self, node: Any, change: Callable[[Any], Any]) -> Any:
        """Copy an operator with each of its top-level expressions changed; `change` may recurse."""
        arguments = read_list(node.productIterator().toSeq())
        return node.makeCopy(self._make_array([self._change_argument(argument, change) for argument in arguments]))

    def _change_argument(self, argument: Any, change: Callable[[Any], Any]) -> Any:
        if not hasattr(argument, "getClass"):
            return argument
        if self.is_expression(argument):
            return change(argument)
        if is_instance_of(self._gateway, argument, "scala.Some") and self.is_expression(argument.get()):
            return self.make_some(change(argument.get()))
        if is_instance_of(self._gateway, argument, "scala.collection.immutable.Seq"):
            return self.seq([self._change_argument(value, change) for value in read_list(argument)])
        return argument

    def aggregate_expression(self, function: Any, condition: Any | None = None, *, is_distinct: bool = False) -> Any:
        mode = self.companion(f"{_EXPRESSIONS}.aggregate.Complete")
        condition = self.none if condition is None else self.make_some(condition)
        return self.expression("aggregate.AggregateExpression", function, mode, is_distinct, condition)


def _is_orderable(data_type: Any) -> bool:
    """Whether a type, in Spark's JSON form, has an order: maps, variants and mixed intervals have none."""
    if isinstance(data_type, str):
        return data_type not in ("variant", "interval")
    if data_type["type"] == "struct":
        return all(_is_orderable(field["type"]) for field in data_type["fields"])
    return data_type["type"] == "array" and _is_orderable(data_type["elementType"])


def read_scratch(path: Path) -> pa.Buffer:
    """Map a file into memory. It stays readable after the file is removed."""
    with using_scratch():
        if not path.stat().st_size:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()


def split_frames(written: pa.Buffer) -> Iterator[pa.Buffer]:
    """The byte arrays that the JVM wrote to a scratch file, each preceded by its length."""
    at = 0
    while at < written.size:
        (length,) = binary.unpack_from(">i", written, at)
        yield written.slice(at + 4, length)
        at += 4 + length
