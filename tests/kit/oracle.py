"""Oracles: compute views from scratch, and compare the views of a circuit with them.

A `Reference` has the content of the tables and runs queries over it, as a plain Spark batch, or with DuckDB, which
takes milliseconds where Spark takes a tenth of a second. Neither shares code with the operators under test. `drive`
runs transactions through a circuit, adds up its deltas, and compares every view with the reference.

Where SQL leaves the order of rows open, Spark's result is one of several. A view must then be equal, bit by bit, for
the same rows (I15): `drive_again` compares a circuit with another one that gets the same rows in another order.

The Spark session is configured for many small queries: one partition, no broadcasts, no code generation. That is
several times faster than the defaults at this size, and a second implementation beside the generated code. One rule
of Spark's optimizer is off, since it gives wrong results (docs/sql.md, "Where Spark is wrong")."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.rows.changes import DIFF, consolidate_delta, expand
from evertide.rows.conform import conform_table
from tests.kit.compare import Differs, compare, compare_bits
from tests.kit.ledger import Transaction, delta_of, delta_schema, sample
from tests.kit.runtime import RandomStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from evertide.plan.program.program import Program

_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
_NO_TYPES: Mapping[str, StructType] = MappingProxyType({})
_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughLimitAndOffset",
}


class Steps(Protocol):
    """The interface of `evertide.flow.Circuit` that `drive` uses."""

    @property
    def views(self) -> Mapping[str, pa.Schema]: ...

    def step(self, deltas: Transaction) -> Mapping[str, pa.Table]: ...


class Content:
    """The content of a collection: the sum of its deltas. No row may have a negative count."""

    def __init__(self, schema: pa.Schema, where: str = "collection") -> None:
        self._where = where
        self._schema = delta_schema(schema)
        self._held: pa.Table = self._schema.empty_table()

    def apply(self, delta: pa.Table) -> None:
        """Add a delta. `Differs`, without a change, if its schema is wrong or it removes a row that does not exist."""
        if delta.schema.names != self._schema.names or delta.schema.types != self._schema.types:
            told = f"the delta has the columns {_describe(delta.schema)}, but must have {_describe(self._schema)}"
            raise Differs(self._where, told)
        if delta.num_rows == 0:
            return
        held = consolidate_delta(
            pa.concat_tables([self._held, pa.Table.from_arrays(delta.columns, schema=self._schema)]), self._where
        )
        negative = held.filter(pc.less(held.column(DIFF), 0))
        if negative.num_rows:
            raise Differs(
                self._where,
                f"{negative.num_rows} rows would be there less than no time",
                surplus=negative.slice(0, 5).to_pylist(),
            )
        self._held = held

    @property
    def rows(self) -> pa.Table:
        """All rows; a row that occurs several times is repeated."""
        return expand(self._held, self._where)


class Reference:
    """The content of tables, and the results of queries over them.

    `views` are queries that other queries may name, as in a script with views over views; they are declared in order.
    `types` has the columns of tables with a collation, which their Arrow schemas do not have: see `read_types`.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        schemas: Mapping[str, pa.Schema],
        views: Mapping[str, str] = _NO_TEXTS,
        types: Mapping[str, StructType] = _NO_TYPES,
    ) -> None:
        self._contents = {name: Content(schema, f"table {name}") for name, schema in schemas.items()}
        self._views = dict(views)
        self._types = dict(types)
        self._session = _quick_session(spark) if spark is not None else None
        self._duckdb: Any = None
        self._stale = {"spark": set(schemas), "duckdb": set(schemas)}

    def apply(self, deltas: Transaction) -> None:
        for name, delta in deltas.items():
            self._contents[name].apply(delta)
            if delta.num_rows:
                for stale in self._stale.values():
                    stale.add(name)

    def rows(self, table: str) -> pa.Table:
        return self._contents[table].rows

    def by_spark(self, query: str) -> pa.Table:
        """The result of the query, as a plain Spark batch in a separate session."""
        session = self._get_session()
        with _left_active(type(session)):
            self._load(session, self._take_stale("spark"))
            return _collect(session.sql(query))

    def by_spark_over_unseen_rows(self, query: str, shuffle: RandomStream | None = None) -> pa.Table:
        """Like `by_spark`, but Spark's optimizer does not see the rows of the tables, as with files.

        For `by_spark` it sees them, and removes a join with an empty table. No expression over the other table is then
        evaluated, so an expression that fails for a row does not fail the query.

        With `shuffle`, the rows of each table are in a random order.
        """
        session = _quick_session(self._get_session())
        with _left_active(type(session)):
            for name in self._contents:
                rows = self.rows(name)
                if shuffle is not None:
                    rows = rows.take(pa.array(sample(shuffle, rows.num_rows, rows.num_rows), pa.int64()))
                self._make_frame(session, name, rows).localCheckpoint(eager=False).createOrReplaceTempView(name)
            self._name_views(session)
            return _collect(session.sql(query))

    def _get_session(self) -> SparkSession:
        if self._session is None:
            raise InvalidInput(where="Reference", why="it was made without a Spark session")
        return self._session

    def _load(self, session: SparkSession, tables: Collection[str]) -> None:
        for name in tables:
            self._make_frame(session, name, self.rows(name)).createOrReplaceTempView(name)
        if tables:
            self._name_views(session)

    def _make_frame(self, session: SparkSession, table: str, rows: pa.Table) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - DuckDB needs no pyspark

        types = self._types.get(table) or from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        return session.createDataFrame(rows, schema=types)

    def _name_views(self, session: SparkSession) -> None:
        for name, view in self._views.items():
            session.sql(view).createOrReplaceTempView(name)

    def by_duckdb(self, query: str) -> pa.Table:
        """The result of the query from DuckDB; sums and averages may have other types than Spark's."""
        if self._duckdb is None:
            self._duckdb = _open_duckdb(self._time_zone)
        stale = self._take_stale("duckdb")
        for name in stale:
            self._duckdb.register(name, self.rows(name))
        for name, view in self._views.items() if stale else ():
            self._duckdb.execute(f'CREATE OR REPLACE TEMPORARY VIEW "{name}" AS {view}')
        return self._duckdb.sql(query).to_arrow_table()

    @property
    def _time_zone(self) -> str:
        if self._session is None:
            return "UTC"
        return str(self._session.conf.get("spark.sql.session.timeZone"))

    def _take_stale(self, engine: str) -> list[str]:
        """The tables that changed since the engine last loaded them."""
        stale, self._stale[engine] = sorted(self._stale[engine]), set()
        return stale


def read_types(program: Program) -> dict[str, StructType]:
    """The columns of the tables of a program as they are declared."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - DuckDB needs no pyspark

    found = {}
    for name, columns in program.tables.items():
        fields = [
            {"name": each.name, "type": json.loads(each.type), "nullable": each.nullable, "metadata": {}}
            for each in columns
        ]
        found[name] = StructType.fromJson({"type": "struct", "fields": fields})
    return found


def drive(
    circuit: Steps,
    reference: Reference,
    queries: Mapping[str, str],
    transactions: Iterable[Transaction],
    *,
    spark_every: int = 1,
    duckdb_every: int = 0,
    duckdb_queries: Mapping[str, str] | None = None,
    relative: float = 1e-9,
) -> dict[str, Content]:
    """Run transactions through a circuit, compare its views with the reference, and return their content.

    The oracles are compared after every `spark_every` and `duckdb_every` transactions, and after the last; 0 is never.
    `queries` are those of the views; `duckdb_queries` replaces them for DuckDB. `Differs` names the view, the
    transaction (from 0) and the oracle.
    """
    duckdb = queries if duckdb_queries is None else duckdb_queries
    oracles = [
        _Oracle("Spark", reference.by_spark, queries, spark_every, exact_types=True),
        _Oracle("DuckDB", reference.by_duckdb, duckdb, duckdb_every, exact_types=False),
    ]
    contents = {name: Content(circuit.views[name], f"view {name}") for name in queries}
    number = -1
    for number, deltas in enumerate(transactions):
        reference.apply(deltas)
        _add_up(contents, circuit.step(deltas), number)
        for oracle in oracles:
            if oracle.is_due(number):
                oracle.check(contents, number, relative)
    for oracle in oracles:
        if oracle.every and not oracle.is_due(number):
            oracle.check(contents, number, relative)
    return contents


def drive_again(
    circuit: Steps, again: Steps, tables: Mapping[str, pa.Schema], transactions: Iterable[Transaction]
) -> None:
    """Run transactions through a circuit; pass the final rows to another one in one transaction, in reverse order.

    `Differs` names the first view that retracts a row that it does not have, or that is not bitwise equal in both.
    """
    held = {name: Content(schema, f"table {name}") for name, schema in tables.items()}
    contents = {name: Content(schema, f"view {name}") for name, schema in circuit.views.items()}
    for number, deltas in enumerate(transactions):
        for name, delta in deltas.items():
            held[name].apply(delta)
        _add_up(contents, circuit.step(deltas), number)
    expected = {name: Content(schema, f"view {name}") for name, schema in again.views.items()}
    _add_up(expected, again.step({name: delta_of(_reverse(held[name].rows), 1) for name in tables}), 0)
    for name, content in contents.items():
        compare_bits(content.rows, expected[name].rows, where=f"view {name}, given the same rows at once")


def _reverse(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))


@dataclass(frozen=True, slots=True)
class _Oracle:
    name: str
    answer: Callable[[str], pa.Table]
    queries: Mapping[str, str]
    every: int
    exact_types: bool

    def is_due(self, number: int) -> bool:
        return self.every > 0 and (number + 1) % self.every == 0

    def check(self, contents: Mapping[str, Content], number: int, relative: float) -> None:
        """Check all views, so that one run reports all that differ."""
        at = f"transaction {number}, by {self.name}"
        wrong: dict[str, Differs] = {}
        for view, query in self.queries.items():
            found, expected = contents[view].rows, self.answer(query)
            try:
                compare(found, expected, where=f"view {view}, {at}", relative=relative, exact_types=self.exact_types)
            except Differs as error:
                wrong[view] = error
        if len(wrong) == 1:
            raise next(iter(wrong.values()))
        if wrong:
            raise Differs(f"views {', '.join(wrong)}, {at}", "\n".join(map(str, wrong.values())))


def _add_up(contents: Mapping[str, Content], deltas: Mapping[str, pa.Table], number: int) -> None:
    for name, content in contents.items():
        if name not in deltas:
            raise Differs(
                f"view {name}, transaction {number}", "the circuit gave no delta for it, not even an empty one"
            )
        try:
            content.apply(deltas[name])
        except Differs as error:
            raise Differs(f"view {name}, transaction {number}", error.why, error.missing, error.surplus) from error


@contextmanager
def _left_active(sessions: type[SparkSession]) -> Iterator[None]:
    """Restore the active session: PySpark activates the oracle's session, with its settings, to create a frame."""
    before = sessions.getActiveSession()
    try:
        yield
    finally:
        if before is not None:
            before._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(before._jsparkSession)
            sessions._activeSession = before


def _collect(frame: DataFrame) -> pa.Table:
    """Like `toArrow`, which fails for a NULL of the type VARIANT: Arrow does not cast a NULL struct whose fields are
    NOT NULL."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - DuckDB needs no pyspark

    schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    batches: Any = frame._collect_as_arrow(empty_list_if_zero_records=False)
    return conform_table(pa.Table.from_batches(batches), schema)


def _quick_session(spark: SparkSession) -> SparkSession:
    """A separate session, which shares neither views nor settings with others."""
    session = spark.newSession()
    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    return session


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _open_duckdb(time_zone: str) -> Any:
    connection = duckdb.connect()
    # As in Spark.
    connection.execute("SET TimeZone = ?", [time_zone])
    connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    return connection
