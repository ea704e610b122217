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

__all__ = ["arrow_schema", "arrow_type", "column_name"]


def column_name(at: int) -> str:
    return f"c{at}"


def arrow_schema(attributes: Sequence[Attribute]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(column_name(at), arrow_type(attribute.type), nullable=attribute.nullable)
            for at, attribute in enumerate(attributes)
        ]
    )


@lru_cache(maxsize=1024)
def arrow_type(spark: str) -> Any:
    """The Arrow type of a type in Spark's JSON form."""
    field = {"name": "c", "type": json.loads(spark), "nullable": True, "metadata": {}}
    try:
        return to_arrow_type(StructField.fromJson(field).dataType, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(where=f"type {spark}", why=f"values of this type cannot be stored: {error}") from error
