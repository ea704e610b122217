"""The columns of an answer, with their SQL types."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from evertide.sources.values.kinds import sql_name

__all__ = ["Column", "list_columns"]


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str
    """As in CREATE TABLE."""
    is_nullable: bool


def list_columns(schema: pa.Schema) -> list[Column]:
    return [Column(field.name, sql_name(field.type), field.nullable) for field in schema]
