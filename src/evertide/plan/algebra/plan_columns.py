"""Columns of a plan as Arrow columns, named by position, since names may repeat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField

from evertide.errors import InvalidInput
from evertide.plan.algebra.nodes import Attribute


def name_column(at: int) -> str:
    return f"c{at}"


def make_arrow_schema(attributes: Sequence[Attribute]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name_column(at), find_arrow_type(attribute.type), nullable=attribute.nullable)
            for at, attribute in enumerate(attributes)
        ]
    )


@lru_cache(maxsize=1024)
def find_arrow_type(spark: str) -> Any:
    """The Arrow type of a type in Spark's JSON form."""
    field = {"name": "c", "type": json.loads(spark), "nullable": True, "metadata": {}}
    try:
        return to_arrow_type(StructField.fromJson(field).dataType, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(where=f"type {spark}", why=f"values of this type cannot be stored: {error}") from error


def check_type(column: Attribute, where: str) -> None:
    """Refuse a column of a table or view that cannot be stored, or whose fields a reader could not tell apart."""
    where = f"{where}, column {column.name!r}"
    name = _find_repeated_name(json.loads(column.type))
    if name is not None:
        why = f"the type has a struct with two fields named {name!r}, ignoring case; rename one, as in named_struct()"
        raise InvalidInput(where=where, why=why)
    try:
        find_arrow_type(column.type)
    except InvalidInput as error:
        raise InvalidInput(where=where, why=f"{error.where}: {error.why}") from error


def _find_repeated_name(kind: Any) -> str | None:
    """The name of two fields of one struct inside the type, in lower case."""
    if isinstance(kind, str):
        return None
    names = [field["name"].lower() for field in kind.get("fields", ())]
    repeated = (name for name in names if names.count(name) > 1)
    return next(repeated, None) or next(filter(None, map(_find_repeated_name, _list_inner_types(kind))), None)


def contains_type(spark: str, name: str) -> bool:
    """Whether a type in Spark's JSON form is a `name`, such as `map` or `variant`, or has one inside."""
    return _contains(json.loads(spark), name)


def _contains(kind: Any, name: str) -> bool:
    if isinstance(kind, str):
        return kind == name
    return kind["type"] == name or any(_contains(inner, name) for inner in _list_inner_types(kind))


def _list_inner_types(kind: dict[str, Any]) -> list[Any]:
    inner = [field["type"] for field in kind.get("fields", ())]
    return inner + [kind[part] for part in ("elementType", "keyType", "valueType") if part in kind]
