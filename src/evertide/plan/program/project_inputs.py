"""Converts `spark.read` and `spark.readStream` in a project's Python to tables of the pipeline.

    @dp.table
    def orders():
        return spark.readStream.format("json").schema("id BIGINT, amount INT").load("incoming/orders")

declares the table `orders`, which reads that directory. A function that transforms the data is a view over a table
`<name of the function>_input` (`_input2` and so on, if it loads several times).

1. Files (csv, json, parquet) need a schema, since a pipeline must know its columns before the first file arrives. Each
   file is read once, as by a stream, also with `read`.
2. Kafka has the columns key, value, topic, partition, offset and timestamp, and starts at the end, as in Spark.
3. `table(name)` is a table or a view of the project. Any other format, option or method is refused by its name, with
   the advice to declare the table in SQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from evertide.errors import InvalidInput
from evertide.plan.script.statements import DeclaredColumn, TableStatement

_FILES = {
    "csv": {"sep": "delimiter", "delimiter": "delimiter", "header": "header", "nullvalue": "null_value"},
    "json": {},
    "parquet": {},
}
"""Per format, Spark's options with the same meaning in Evertide, and their names in Evertide."""
_ALL_FILES = {"path": "path", "pathglobfilter": "pattern"}
_KAFKA = {"kafka.bootstrap.servers": "brokers", "subscribe": "topic", "startingoffsets": "start"}
_KAFKA_COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
_INSTEAD = "declare the table in a .sql file of the project: CREATE TABLE name (...) USING connector OPTIONS (...)"


class ProjectSession(SparkSession):  # type: ignore[misc]  # pyspark's classes are Any here
    """The session of a project's plans. It knows the pipeline's tables; each load creates one."""

    def __init__(self, session: SparkSession, add_table: Callable[[TableStatement], None]) -> None:
        """`add_table` adds a table to the session."""
        super().__init__(session.sparkContext, jsparkSession=session._jsparkSession)
        self._add_table = add_table
        self._output = ""
        self._count = 0
        self.where = ""
        self.loaded: dict[str, tuple[TableStatement, DataFrame]] = {}
        """By the name of the table."""

    @property
    def read(self) -> Any:
        return _ProjectReader(self)

    @property
    def readStream(self) -> Any:  # noqa: N802 - as Spark calls it
        return _ProjectReader(self)

    @property
    def conf(self) -> Any:
        return _ReadOnlySettings(self, super().conf)

    def begin(self, output: str, where: str) -> None:
        """Assign the following loads to this output."""
        self._output, self._count, self.where = output, 0, where

    def load(self, connector: str, options: dict[str, str], columns: tuple[DeclaredColumn, ...]) -> DataFrame:
        if not self._output:
            raise InvalidInput(
                where=self.where, why="spark.read is called outside of a decorated function; move it into one"
            )
        self._count += 1
        table = TableStatement(
            name=f"{self._output}_input{self._count if self._count > 1 else ''}",
            columns=columns,
            key=(),
            connector=connector,
            options=options,
            properties={},
            comment="",
            is_streaming=False,
            where=self.where,
        )
        self._add_table(table)
        frame = self.table(table.name)
        self.loaded[table.name] = (table, frame)
        return frame

    def take(self, frame: DataFrame) -> TableStatement | None:
        """Remove and return the table that was loaded as this DataFrame; None if the DataFrame is another one."""
        found = next((table for table, each in self.loaded.values() if each is frame), None)
        if found is not None:
            del self.loaded[found.name]
            self.catalog.dropTempView(found.name)
        return found


class _ReadOnlySettings:
    """Spark's settings, read-only: a change would affect the plans that are made later."""

    def __init__(self, session: ProjectSession, settings: Any) -> None:
        self._session = session
        self._settings = settings

    def set(self, key: str, _value: Any) -> NoReturn:
        raise InvalidInput(
            where=self._session.where,
            why=f"spark.conf.set({key!r}) is not supported; put the setting into the spec's configuration",
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


class _ProjectReader:
    def __init__(self, session: ProjectSession) -> None:
        self._session = session
        self._format = "parquet"
        self._options: dict[str, str] = {}
        self._schema: StructType | str | None = None

    def format(self, source: str) -> _ProjectReader:
        self._format = source.lower()
        return self

    def schema(self, schema: StructType | str) -> _ProjectReader:
        self._schema = schema
        return self

    def option(self, key: str, value: Any) -> _ProjectReader:
        self._options[key.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> _ProjectReader:
        for key, value in options.items():
            self.option(key, value)
        return self

    def table(self, name: str) -> DataFrame:
        return self._session.table(name)

    def csv(self, path: str, schema: StructType | str | None = None, **options: Any) -> DataFrame:
        return self.options(**options).load(path, "csv", schema)

    def json(self, path: str, schema: StructType | str | None = None, **options: Any) -> DataFrame:
        return self.options(**options).load(path, "json", schema)

    def parquet(self, path: str, **options: Any) -> DataFrame:
        return self.options(**options).load(path, "parquet")

    def load(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - as Spark calls it
        schema: StructType | str | None = None,
        **options: Any,
    ) -> DataFrame:
        self.options(**options)
        self._format = (format or self._format).lower()
        self._schema = schema if schema is not None else self._schema
        if path is not None:
            self.option("path", path)
        if self._format == "kafka":
            return self._session.load(
                "kafka", self._make_kafka_options(), parse_columns(_KAFKA_COLUMNS, self._session.where)
            )
        if self._format not in _FILES:
            raise self._make_refusal(f"the format {self._format!r} is not supported here; {_INSTEAD}")
        if self._schema is None:
            raise self._make_refusal(
                "the columns must be known before the first file arrives; add .schema('a INT, ...')"
            )
        return self._session.load(
            self._format, self._make_file_options(), parse_columns(self._schema, self._session.where)
        )

    def _make_file_options(self) -> dict[str, str]:
        options = self._rename_options(_ALL_FILES | _FILES[self._format])
        if "://" in options.get("path", ""):
            options["path"] = options["path"].removeprefix("file://")
        if self._format == "csv":
            options.setdefault("header", "false")  # Spark's default; the connector's is true
        return options

    def _make_kafka_options(self) -> dict[str, str]:
        own = {key: value for key, value in self._options.items() if key.startswith("kafka.") and key not in _KAFKA}
        options = self._rename_options(_KAFKA | dict.fromkeys(own, "")) | own
        options.pop("", None)
        options.setdefault("start", "latest")
        if options["start"] not in ("earliest", "latest"):
            raise self._make_refusal(
                f"startingOffsets is {options['start']!r}, but must be 'earliest' or 'latest'; or {_INSTEAD}"
            )
        return options | {"format": "raw"}

    def _rename_options(self, known: dict[str, str]) -> dict[str, str]:
        for key in self._options:
            if key not in known:
                why = f"the option {key!r} of {self._format} is not supported here; leave it out, or {_INSTEAD}"
                raise self._make_refusal(why)
        return {known[key]: value for key, value in self._options.items()}

    def _make_refusal(self, why: str) -> InvalidInput:
        return InvalidInput(where=self._session.where, why=why)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._make_refusal(f"spark.read.{name} is not supported here; {_INSTEAD}")


def parse_columns(schema: StructType | str, where: str) -> tuple[DeclaredColumn, ...]:
    """The columns of a schema: a StructType, or its text."""
    found = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    fields = json.loads(found.json())["fields"]
    return tuple(
        DeclaredColumn.make(each["name"], json.dumps(each["type"]), where, nullable=each["nullable"]) for each in fields
    )
