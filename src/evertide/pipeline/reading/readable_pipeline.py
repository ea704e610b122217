"""`ReadablePipeline`: the calls of `Pipeline` that read; they need no turn, and any thread may make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

from evertide.formats import format_count
from evertide.pipeline.reading.collections import Collections, View
from evertide.pipeline.reading.readable_rows import ReadableRows
from evertide.pipeline.status.status import Status
from evertide.plan.catalyst.session import DataFrame, SparkSession
from evertide.plan.query.query import make_frame, pad_comparisons, run_query
from evertide.source_text import marking_text


class QueryResult(ReadableRows):
    """The rows of a query, read at one time."""

    def __init__(self, rows: pa.Table, time: int, spark: SparkSession) -> None:
        self.time = time
        self._rows = rows
        self._spark = spark

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def to_arrow(self) -> pa.Table:
        return self._rows

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows.to_batches()

    def to_spark(self) -> DataFrame:
        return make_frame(self._spark, self._rows)

    def describe(self) -> str:
        return f"Query at time {self.time}"

    def __repr__(self) -> str:
        return f"<{self.describe()}: {format_count(self._rows.num_rows, 'row')} of {', '.join(self.schema.names)}>"


class ReadablePipeline(ABC):
    collections: Collections
    _is_closed: bool

    @property
    @abstractmethod
    def time(self) -> int:
        """The last committed transaction."""

    @abstractmethod
    def status(self) -> Status: ...

    @abstractmethod
    def _get_query_session(self) -> SparkSession:
        """A session with the settings of the pipeline, and of a project if it is one."""

    def view(self, name: str) -> View:
        """A view or a table."""
        return self.collections.view(name)

    def table(self, name: str) -> View:
        """The same as `view`."""
        return self.view(name)

    def sql(self, text: str, *, as_of: int | None = None) -> QueryResult:
        """Run a query over tables and views, all read at one time."""
        session = self._get_query_session()
        read = self.collections.read_tables_at
        at: list[int] = []

        def load(on: SparkSession, names: Sequence[str]) -> dict[str, DataFrame]:
            time, tables = read(names, as_of)
            at.append(time)
            known = self.collections
            return {
                one: pad_comparisons(make_frame(on, rows), known.list_compared_types(one))
                for one, rows in tables.items()
            }

        with marking_text(text):
            rows = run_query(session, text, load, explain_unknown=self.collections.explain_unknown)
        return QueryResult(rows, at[0], session)

    def query(self, text: str, *, as_of: int | None = None) -> pa.Table:
        """The rows of `sql` as Arrow."""
        return self.sql(text, as_of=as_of).to_arrow()

    def _repr_html_(self) -> str | None:
        """A notebook shows `repr` instead of None: a closed pipeline has only its last status, which was `running`."""
        return None if self._is_closed else self.status()._repr_html_()
