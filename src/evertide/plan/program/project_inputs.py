"""`spark.read` and `spark.readStream` in a project's Python: what they load becomes a table of the pipeline.

    @dp.table
    def orders():
        return spark.readStream.format("json").schema("id BIGINT, amount INT").load("incoming/orders")

declares the table `orders`, which reads that directory. A function that makes something else of what it loads is a view
over a table `<its name>_input` (`_input2` and so on, if it loads several times).

1. Files (csv, json, parquet) need a schema: a pipeline knows its columns before the first file comes. A file is read
   once, as by a stream, also if the function says `read`.
2. Kafka has the columns key, value, topic, partition, offset and timestamp, and begins where Spark would: at the end.
3. `table(name)` is a table or a view of the project. Any other format, option or method is refused by its name, with
   what to do: declare the table in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from evertide.errors import InvalidInput
from evertide.plan.program.statements import Column, TableStatement

__all__ = ["ProjectSession", "columns_of"]

_FILES = {
    "csv": {"sep": "delimiter", "delimiter": "delimiter", "header": "header", "nullvalue": "null_value"},
    "json": {},
    "parquet": {},
}
"""The options of Spark that mean the same here, by their name here."""
_ALL_FILES = {"path": "path", "pathglobfilter": "pattern"}
_KAFKA = {"kafka.bootstrap.servers": "brokers", "subscribe": "topic", "startingoffsets": "start"}
_KAFKA_COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
_INSTEAD = "declare the table in a .sql file of the project, by CREATE TABLE name (...) USING connector OPTIONS (...)"


class ProjectSession(SparkSession):  # type: ignore[misc]  # pyspark's classes are Any here
    """The session of a project's plans: tables of the pipeline are known in it, and what is loaded becomes one."""

    def __init__(self, session: SparkSession, add_table: Callable[[TableStatement], None]) -> None:
        """`add_table` makes a table known to the session."""
        super().__init__(session.sparkContext, jsparkSession=session._jsparkSession)
        self._add_table = add_table
        self._output = ""
        self._count = 0
        self.where = ""
        self.loaded: dict[str, tuple[TableStatement, DataFrame]] = {}
        """By the name of the table."""

    @property
    def read(self) -> Any:
        return _Reader(self)

    @property
    def readStream(self) -> Any:  # noqa: N802 - as Spark calls it
        return _Reader(self)

    @property
    def conf(self) -> Any:
        return _Settings(self, super().conf)

    def begin(self, output: str, where: str) -> None:
        """What is loaded from now on is loaded for this output."""
        self._output, self._count, self.where = output, 0, where

    def load(self, connector: str, options: dict[str, str], columns: tuple[Column, ...]) -> DataFrame:
        if not self._output:
            raise InvalidInput(where=self.where, why="spark.read: tables are loaded inside of decorated functions")
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
        """The table that was loaded as this very DataFrame, if nothing was made of it; it is then not loaded beside."""
        found = next((table for table, each in self.loaded.values() if each is frame), None)
        if found is not None:
            del self.loaded[found.name]
            self.catalog.dropTempView(found.name)
        return found


class _Settings:
    """Spark's settings, to be read: whoever sets one while plans are made changes those that come after it."""

    def __init__(self, session: ProjectSession, settings: Any) -> None:
        self._session = session
        self._settings = settings

    def set(self, key: str, _value: Any) -> NoReturn:
        raise InvalidInput(
            where=self._session.where, why=f"spark.conf.set({key!r}): put it into the spec's configuration"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


class _Reader:
    def __init__(self, session: ProjectSession) -> None:
        self._session = session
        self._format = "parquet"
        self._options: dict[str, str] = {}
        self._schema: StructType | str | None = None

    def format(self, source: str) -> _Reader:
        self._format = source.lower()
        return self

    def schema(self, schema: StructType | str) -> _Reader:
        self._schema = schema
        return self

    def option(self, key: str, value: Any) -> _Reader:
        self._options[key.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> _Reader:
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
            return self._session.load("kafka", self._kafka(), columns_of(_KAFKA_COLUMNS))
        if self._format not in _FILES:
            raise self._refusal(f"the format {self._format!r} cannot be loaded here: {_INSTEAD}")
        if self._schema is None:
            raise self._refusal(
                "it needs a schema, as columns are known before the first file: add .schema('a INT, ...')"
            )
        return self._session.load(self._format, self._files(), columns_of(self._schema))

    def _files(self) -> dict[str, str]:
        options = self._rename_options(_ALL_FILES | _FILES[self._format])
        if "://" in options.get("path", ""):
            options["path"] = options["path"].removeprefix("file://")
        if self._format == "csv":
            options.setdefault("header", "false")  # Spark's default; the connector's is true
        return options

    def _kafka(self) -> dict[str, str]:
        own = {key: value for key, value in self._options.items() if key.startswith("kafka.") and key not in _KAFKA}
        options = self._rename_options(_KAFKA | dict.fromkeys(own, "")) | own
        options.pop("", None)
        options.setdefault("start", "latest")
        if options["start"] not in ("earliest", "latest"):
            raise self._refusal(
                f"startingOffsets is {options['start']!r}: expected 'earliest' or 'latest'; else {_INSTEAD}"
            )
        return options | {"format": "raw"}

    def _rename_options(self, known: dict[str, str]) -> dict[str, str]:
        for key in self._options:
            if key not in known:
                why = f"the option {key!r} of {self._format} has no counterpart here: leave it out, or {_INSTEAD}"
                raise self._refusal(why)
        return {known[key]: value for key, value in self._options.items()}

    def _refusal(self, why: str) -> InvalidInput:
        return InvalidInput(where=self._session.where, why=why)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refusal(f"spark.read.{name} cannot be used here: {_INSTEAD}")


def columns_of(schema: StructType | str) -> tuple[Column, ...]:
    """Of a schema as Spark's functions take it: a StructType, or the text of one."""
    found = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    fields = json.loads(found.json())["fields"]
    return tuple(Column(each["name"], json.dumps(each["type"]), each["nullable"]) for each in fields)
