"""Decode the bytes of a key or a value: JSON, Avro, CSV or plain text.

A format decodes bytes to a mapping by name or to a single value, or raises `Unreadable`. The values of CSV and plain
text are texts, which are converted when their column is known; `is_text` is true for these formats.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import fastavro
import msgspec
import pyarrow as pa
from fastavro._read_py import schemaless_reader as nested_reader

from evertide.sources.kafka.schema_registry import SchemaRegistry, Unreadable
from evertide.sources.values.strict_json import RepeatedName, decode_json
from evertide.sources.values.values import json_decoder

_MAGIC = 0
_AVRO_HEAD = 5


class ValueFormat(Protocol):
    @property
    def is_text(self) -> bool: ...

    def decode(self, content: bytes) -> Any:
        """Return a mapping by name or a single value. Raises `Unreadable`."""
        ...


class JsonFormat:
    """Decodes numbers exactly as written if a column needs that, which is slower."""

    is_text = False

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._decoder = json_decoder(schema)

    def __reduce__(self) -> tuple[type[JsonFormat], tuple[pa.Schema]]:
        """Pickle the schema only: an executor creates its own decoder."""
        return JsonFormat, (self._schema,)

    def decode(self, content: bytes) -> Any:
        try:
            return decode_json(self._decoder, content)
        except RepeatedName as error:
            raise Unreadable(str(error)) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Unreadable(f"not JSON: {error}") from error


class TextFormat:
    """A key that is a single text."""

    is_text = True

    def decode(self, content: bytes) -> Any:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise Unreadable("not UTF-8") from error


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """The registry's wire format: a zero byte, the schema's number in four bytes, and the datum."""

    registry: SchemaRegistry
    is_text: bool = False

    def decode(self, content: bytes) -> Any:
        number = _schema_number(content)
        schema = self.registry.schema(number)
        read = nested_reader if self.registry.is_recursive(number) else fastavro.schemaless_reader
        stream = io.BytesIO(content)
        stream.seek(_AVRO_HEAD)
        try:
            found = read(stream, schema, None)
        except RecursionError as error:
            raise Unreadable("the datum is nested too deeply") from error
        except Exception as error:  # fastavro raises errors of any type for invalid bytes
            raise Unreadable(f"the datum does not match its schema: {type(error).__name__} {error}") from error
        if stream.tell() != len(content):
            raise Unreadable(f"{len(content) - stream.tell()} bytes follow the datum")
        return found

    def schema_of(self, content: bytes) -> Any:
        return self.registry.schema(_schema_number(content))


def _schema_number(content: bytes) -> int:
    if len(content) < _AVRO_HEAD or content[0] != _MAGIC:
        raise Unreadable("not in the schema registry's format: expected a zero byte and the number of a schema first")
    return int.from_bytes(content[1:_AVRO_HEAD], "big")


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """One RFC 4180 record whose fields are the columns in order. An unquoted `null_value` is NULL."""

    columns: Sequence[str]
    delimiter: str = ","
    null_value: str = ""
    is_text: bool = True

    def decode(self, content: bytes) -> Any:
        try:
            text = content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise Unreadable("not UTF-8") from error
        if '"' in text:
            fields = self._split_quoted(text)
        elif "\n" in text:
            raise Unreadable("the text has several lines; expected one record")
        else:
            fields = [None if one == self.null_value else one for one in text.split(self.delimiter)]
        if len(fields) != len(self.columns):
            raise Unreadable(f"the record has {len(fields)} fields, expected {len(self.columns)}")
        return dict(zip(self.columns, fields, strict=True))

    def _split_quoted(self, text: str) -> list[str | None]:
        fields: list[str | None] = []
        at = 0
        while True:
            if text[at : at + 1] == '"':
                field, at = _read_quoted_field(text, at + 1)
                fields.append(field)
                if text[at : at + 1] not in ("", self.delimiter):
                    raise Unreadable(f"{text[at]!r} after a quoted field: expected {self.delimiter!r} or the end")
            else:
                end = text.find(self.delimiter, at)
                end = len(text) if end < 0 else end
                field = text[at:end]
                if '"' in field or "\n" in field:
                    raise Unreadable("a quote or a line end in a field that is not quoted")
                fields.append(None if field == self.null_value else field)
                at = end
            if at >= len(text):
                return fields
            at += 1


def _read_quoted_field(text: str, at: int) -> tuple[str, int]:
    """The field that starts after the opening quote at `at`, and the place after its closing quote."""
    runs = []
    while True:
        end = text.find('"', at)
        if end < 0:
            raise Unreadable("a quoted field does not end")
        runs.append(text[at:end])
        if text[end + 1 : end + 2] != '"':
            return "".join(runs), end + 1
        runs.append('"')
        at = end + 2
