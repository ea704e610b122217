"""Reads the rows of a pushed file as the connector `files` does, except that a row that does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from evertide.errors import InvalidInput, SourceFailed
from evertide.settings import Settings
from evertide.sources.contract import OP, Fault, Limit, TableDeclaration
from evertide.sources.files.csv import CsvRecords
from evertide.sources.files.fragments import FileReader, FileTable
from evertide.sources.files.json_lines import JsonRecords
from evertide.sources.files.parquet import ParquetReader
from evertide.sources.files.records import RecordLayout
from evertide.sources.files.text import TextReader
from evertide.suggestions import list_names

if TYPE_CHECKING:  # an engine imports Spark, which a client that pushes to another process does not need
    from evertide.pipeline.engine import DeclaredTable


class PushFormat(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"


def read_pushed_file(
    tables: Mapping[str, DeclaredTable], table: str, path: Path, form: PushFormat, place: str, *, is_delete: bool
) -> Iterator[pa.Table]:
    """Yield the rows in batches; the first row that does not fit raises. `place` is the file's name in messages."""
    declared = {name.lower(): one for name, one in tables.items()}.get(table.lower())
    if declared is None:
        why = f"the script has no such table{list_names(table, sorted(tables), 'it has')}"
        raise InvalidInput(where=f"table {table!r}", why=why)
    reader = _open_reader(_declare(declared, is_delete=is_delete), form, is_delete=is_delete)
    settings = Settings()
    limit = Limit(settings.transaction_rows_max, settings.transaction_bytes_max)
    try:
        for cut in reader.split_file(path, limit):
            for rows in reader.rows(path, cut, place):
                if rows.faults:
                    raise _make_error(declared.name, rows.faults[0], len(rows.faults))
                yield rows.rows.drop_columns([OP])
    except SourceFailed as error:
        raise InvalidInput(where=place, why=error.why) from error
    except OSError as error:
        raise InvalidInput(where=place, why=f"the file cannot be read: {error.strerror}") from error


def _declare(table: DeclaredTable, *, is_delete: bool) -> TableDeclaration:
    """For deletes by key, only the key columns are read."""
    schema = table.schema
    if is_delete and table.key:
        schema = pa.schema([schema.field(name) for name in table.key])
    named = (table.name, schema, table.key, table.connector, table.options, table.where)
    return TableDeclaration(*named, defaults=table.defaults)


def _open_reader(declaration: TableDeclaration, form: PushFormat, *, is_delete: bool) -> FileReader:
    table = FileTable(declaration, declaration.name, "", ignore_extra=is_delete, has_options=False)
    if form is PushFormat.parquet:
        return ParquetReader(table)
    if form is PushFormat.csv:
        return TextReader(table, CsvRecords(table), RecordLayout(","))
    return TextReader(table, JsonRecords(table), RecordLayout())


def _make_error(table: str, fault: Fault, count: int) -> InvalidInput:
    more = f" ({count - 1} more rows do not fit either)" if count > 1 else ""
    return InvalidInput(where=f"{fault.place}:{fault.line}, table {table!r}", why=f"{fault.reason}{more}")
