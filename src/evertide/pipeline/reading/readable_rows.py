"""`ReadableRows`: rows that a program or a notebook reads: as Arrow, as data frames, as Python values, or printed.

Printing reads only the rows that it prints. In a notebook, rows show as a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.formats import format_value
from evertide.rows.frames import to_pandas, to_polars
from evertide.rows.python_rows import to_python_rows
from evertide.tables import TextTable, render_html_lines, render_text

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from evertide.plan.catalyst.session import DataFrame

SHOWN = 20
"""The rows that are printed by default."""


class ReadableRows(ABC):
    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows piece by piece, for content that does not fit in memory."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows, repeated by their count, in an order that depends only on the content."""

    @abstractmethod
    def to_spark(self) -> DataFrame:
        """The rows as a DataFrame of the pipeline's Spark session."""

    @abstractmethod
    def describe(self) -> str:
        """What these rows are, and of which time."""

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame of pandas, without rounding any value (`evertide.rows.frames`)."""
        frame: pd.DataFrame = to_pandas(self.to_arrow())
        return frame

    def to_polars(self) -> pl.DataFrame:
        """The rows as a DataFrame of polars."""
        frame: pl.DataFrame = to_polars(self.to_arrow())
        return frame

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as Python values; texts for values that Python lacks (`evertide.rows.python_rows`)."""
        return to_python_rows(self.to_arrow())

    def show(self, n: int = SHOWN) -> None:
        """Print the first `n` rows."""
        print(render_text(self.list_parts(n)))  # noqa: T201 - the purpose of this call

    def _repr_html_(self) -> str:
        return render_html_lines(self.list_parts(SHOWN))

    def list_parts(self, count: int) -> list[TextTable | str]:
        """The description, the first rows as a table, and how many rows there are if these are all."""
        batches = self.to_batches()
        found: list[pa.RecordBatch] = []
        left = count + 1
        for batch in batches:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if left == 0:
                break
        rows = pa.Table.from_batches(found, self.schema)
        size = (
            f"the first {count:,} rows" if left == 0 else "1 row" if rows.num_rows == 1 else f"{rows.num_rows:,} rows"
        )
        return [f"{self.describe()}: {size}", make_row_table("", rows.slice(0, count))]


def make_row_table(title: str, rows: pa.Table) -> TextTable:
    """Rows for people; numbers are aligned to the right."""
    numbered = rows.rename_columns([str(at) for at in range(rows.num_columns)])  # a query may have a name twice
    cells = [[format_value(value) for value in row.values()] for row in to_python_rows(numbered)]
    right = [field.name for field in rows.schema if _is_number(field.type)]
    return TextTable(title, rows.schema.names, cells, right)


def _is_number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_floating(kind))
