"""The two classes that Spark calls: `EvertideSource` is the format, `EvertideReader` one read of it.

Spark creates the source when a DataFrame is loaded, in a separate process, and sends it, pickled, to the process that
plans and from there to the executors. Spark shows an error as text with its stack trace, so errors are raised again
from here, without the inner frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from evertide.datasource.planning import ReadPoint, ReadTask, choose_read_point, plan_tasks, select_columns
from evertide.datasource.request import FORMAT, Request
from evertide.datasource.task import read_task
from evertide.errors import EvertideError, InvalidInput
from evertide.rows.conform import conform


class EvertideSource(DataSource):  # type: ignore[misc]
    """A table or view of a pipeline's storage, or its changes between two times. Its options: docs/pipelines.md."""

    _read_point: ReadPoint | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with _CleanTraceback():
            request = Request.of(self.options)
            self._read_point = choose_read_point(request)
            return from_arrow_schema(select_columns(request, self._read_point))

    def reader(self, schema: StructType) -> EvertideReader:
        with _CleanTraceback():
            request = Request.of(self.options)
            read_point = self._read_point or choose_read_point(request)
            columns = from_arrow_schema(select_columns(request, read_point))
            if columns.names != schema.names or any(
                own.dataType != other.dataType for own, other in zip(columns, schema, strict=True)
            ):
                why = f"the columns are {columns.simpleString()}; omit schema(), or use the option 'columns'"
                raise InvalidInput(where=f"collection {read_point.name!r}", why=why)
            return EvertideReader(request, read_point, to_arrow_schema(schema, timezone="UTC"))


@dataclass(frozen=True)
class _TaskPartition(InputPartition):  # type: ignore[misc]
    task: ReadTask


class EvertideReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, request: Request, read_point: ReadPoint, schema: pa.Schema) -> None:
        self._request = request
        self._read_point = read_point
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with _CleanTraceback():
            return [_TaskPartition(task) for task in plan_tasks(self._request, self._read_point)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with _CleanTraceback():
            for batch in read_task(self._request, partition.task):
                yield _convert_to_spark(batch, self._schema)


def _convert_to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert to exactly the types that Spark expects; only labels inside nested types differ."""
    arrays: list[Any] = [conform(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _CleanTraceback:
    """Raises Evertide's errors again without their inner frames, as Spark shows the stack trace to the user."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, EvertideError):
            raise type(error)(*error.facts.values()) from None
