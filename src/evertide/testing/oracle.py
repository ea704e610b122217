"""Oracles: what a view must hold, computed from scratch, and a drive that holds a circuit to it.

A `Reference` keeps what the tables hold and answers queries over it, by Spark as a plain batch, or by DuckDB, which
takes milliseconds where Spark takes a tenth of a second. Neither shares code with the operators under test. `drive`
runs transactions through a circuit, adds up what comes out, and compares every view with the reference.

Where SQL leaves the order of rows open, Spark's answer is one of several. What a view must be then is the same, bit by
bit, for the same rows (I15): `drive_again` compares a circuit with another one that gets the same rows in another way.

Spark's session here is set up for many small queries: one partition, no broadcasts, nothing compiled. That is several
times faster than the defaults at this size, and a second implementation beside the compiled one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.rows.changes import DIFF, expand, net
from evertide.rows.conform import conform_table
from evertide.testing.compare import Differs, compare, compare_bits
from evertide.testing.ledger import Transaction, delta_of, delta_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Content", "Reference", "Steps", "drive", "drive_again"]

_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Steps(Protocol):
    """What is driven: `evertide.flow.Circuit`, or a stand-in."""

    @property
    def views(self) -> Mapping[str, pa.Schema]: ...

    def step(self, deltas: Transaction) -> Mapping[str, pa.Table]: ...


class Content:
    """What a collection holds, by the deltas it was given. It refuses to hold a row less than no time."""

    def __init__(self, schema: pa.Schema, where: str = "collection") -> None:
        self._where = where
        self._schema = delta_schema(schema)
        self._held: pa.Table = self._schema.empty_table()

    def apply(self, delta: pa.Table) -> None:
        """A delta that does not fit, or takes away what is not there, is refused, and changes nothing."""
        if delta.schema.names != self._schema.names or delta.schema.types != self._schema.types:
            told = f"the delta has the columns {_told(delta.schema)}, but must have {_told(self._schema)}"
            raise Differs(self._where, told)
        if delta.num_rows == 0:
            return
        held = net(
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
        """Each row as often as it is there."""
        return expand(self._held, self._where)


class Reference:
    """What tables hold, and what queries over them give.

    `views` are queries that others may name, as in a script with views over views; they are declared in order.
    """

    def __init__(
        self, spark: SparkSession | None, schemas: Mapping[str, pa.Schema], views: Mapping[str, str] = _NO_TEXTS
    ) -> None:
        self._contents = {name: Content(schema, f"table {name}") for name, schema in schemas.items()}
        self._views = dict(views)
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
        """What the table holds, each row as often as it is there."""
        return self._contents[table].rows

    def by_spark(self, query: str) -> pa.Table:
        """The query's rows, by a plain Spark batch in a session of its own."""
        session = self._session
        if session is None:
            raise InvalidInput(where="Reference", why="it was made without a Spark session")
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - DuckDB needs no pyspark

        stale = self._take_stale("spark")
        with _left_active(type(session)):
            for name in stale:
                rows = self.rows(name)
                known = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
                session.createDataFrame(rows, schema=known).createOrReplaceTempView(name)
            for name, view in self._views.items() if stale else ():
                session.sql(view).createOrReplaceTempView(name)
            return _collect(session.sql(query))

    def by_duckdb(self, query: str) -> pa.Table:
        """The query's rows, by DuckDB; sums and averages may have other types than Spark's."""
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
        """The tables that changed since the engine last saw them."""
        stale, self._stale[engine] = sorted(self._stale[engine]), set()
        return stale


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
    """Run transactions through a circuit, compare its views with the reference, and return what they hold.

    An oracle is asked after every so many transactions and after the last; 0 is never. `queries` are the views' own,
    for Spark; DuckDB takes the same texts, unless `duckdb_queries` has those that it understands. `Differs` names
    the view, the transaction (from 0) and the oracle.
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
    """Run transactions through a circuit; give another one all rows that are left at once, the last first.

    `Differs` names the first view that takes away what it never gave, or is not the same bit by bit in both.
    """
    held = {name: Content(schema, f"table {name}") for name, schema in tables.items()}
    contents = {name: Content(schema, f"view {name}") for name, schema in circuit.views.items()}
    for number, deltas in enumerate(transactions):
        for name, delta in deltas.items():
            held[name].apply(delta)
        _add_up(contents, circuit.step(deltas), number)
    expected = {name: Content(schema, f"view {name}") for name, schema in again.views.items()}
    _add_up(expected, again.step({name: delta_of(_reversed(held[name].rows), 1) for name in tables}), 0)
    for name, content in contents.items():
        compare_bits(content.rows, expected[name].rows, where=f"view {name}, given the same rows at once")


def _reversed(rows: pa.Table) -> pa.Table:
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
        """All views, so that one run tells of all that are wrong."""
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
    """PySpark makes a session active when it makes a frame, and leaves it so, with settings that are the oracle's."""
    before = sessions.getActiveSession()
    try:
        yield
    finally:
        if before is not None:
            before._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(before._jsparkSession)  # noqa: SLF001
            sessions._activeSession = before  # noqa: SLF001


def _collect(frame: DataFrame) -> pa.Table:
    """What `toArrow` gives. That casts all columns, which Arrow refuses for a NULL of the type VARIANT: a NULL struct
    whose fields are NOT NULL."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - DuckDB needs no pyspark

    schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    batches: Any = frame._collect_as_arrow(empty_list_if_zero_records=False)  # noqa: SLF001
    return conform_table(pa.Table.from_batches(batches), schema)


def _quick_session(spark: SparkSession) -> SparkSession:
    """A session of its own, so that neither its views nor its settings are seen by others."""
    session = spark.newSession()
    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    return session


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _open_duckdb(time_zone: str) -> Any:
    try:
        import duckdb  # noqa: PLC0415 - only the tests that ask for it need it
    except ImportError as error:
        raise InvalidInput(where="duckdb", why="it is not installed: pip install 'evertide[testing]'") from error
    connection = duckdb.connect()
    # As Spark has them.
    connection.execute("SET TimeZone = ?", [time_zone])
    connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    return connection
