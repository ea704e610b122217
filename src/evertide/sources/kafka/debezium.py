"""Interpret Debezium's envelope: the change of a row in a database.

    {"before": {...} | null, "after": {...} | null, "op": "c" | "u" | "d" | "r" | "m" | "t", "source": {...}, ...}

The envelope is the whole value, or its field `payload` next to the `schema` that describes it. Dates, times and
decimals are numbers or bytes whose meaning only the schema has; they are converted to the table's types. Without a
schema, numbers in date and time columns are ambiguous, and are faults: configure Debezium to write texts or schemas.

1. c and r add the row; u replaces the old row by the new one; d removes the old row.
2. In a table with a key, `before` is used only if its key differs from that of `after`, so it may be missing.
3. Without a key, an update or delete needs the whole `before`: in PostgreSQL, REPLICA IDENTITY FULL.
4. An omitted value (`evertide.sources.kafka.unavailable`) is `UNAVAILABLE`, unless `before` has it; NULL in `before`
   does not count.
5. m, a message, changes nothing. t, a truncation, is not a change of a row: `Truncated` stalls the source.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from evertide.sources.contract import DELETE, UPSERT, TableDeclaration
from evertide.sources.kafka.schema_registry import Unreadable
from evertide.sources.kafka.unavailable import UNAVAILABLE, Placeholder
from evertide.sources.values.values import show_value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE: Mapping[str, Callable[[Any], Any]] = {}


class Truncated(Exception):
    """The upstream table was truncated."""


def unwrap_payload(found: Any) -> Any:
    """Remove the wrapper that holds the schema, if the value has one."""
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        return found["payload"]
    return found


def read_changes(
    found: Any,
    declaration: TableDeclaration,
    conversions: SchemaConversions,
    placeholder: Placeholder,
    schema: Any = None,
) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Yield the operations of a record in order, each with its row; None means the row with the record's key."""
    inner = unwrap_payload(found)
    if not isinstance(inner, dict) or "op" not in inner:
        raise Unreadable(f"{show_value(inner)} is not a Debezium change: expected before, after and op")
    described = found.get("schema") if inner is not found else schema
    by_column = conversions.find(described)
    op = inner["op"]
    before, after = _row(inner, "before", by_column, placeholder), _row(inner, "after", by_column, placeholder)
    if before is not None and after is not None:
        after = {
            name: _fill_unavailable(before, name) if value is UNAVAILABLE else value for name, value in after.items()
        }
    if op in ("c", "r", "u"):
        if after is None:
            raise Unreadable(f"operation {op!r} has no 'after'")
        if op == "u" and _must_delete_old(before, after, declaration):
            yield DELETE, before
        yield UPSERT, after
    elif op == "d":
        if before is None and not declaration.key:
            raise Unreadable("a delete in a table without a key has no 'before'; set REPLICA IDENTITY FULL")
        yield DELETE, before
    elif op == "t":
        raise Truncated
    elif op != "m":
        raise Unreadable(f"{show_value(op)} is not an operation: expected c, r, u, d, m or t")


def _must_delete_old(before: Mapping[str, Any] | None, after: Mapping[str, Any], declaration: TableDeclaration) -> bool:
    """Whether an update must delete the old row separately."""
    if declaration.key:
        old, new = _by_name(before or {}), _by_name(after)
        names = [name.lower() for name in declaration.key]
        return any(old.get(name) is not None and old[name] != new.get(name) for name in names)
    if before is None:
        raise Unreadable("an update in a table without a key has no 'before'; set REPLICA IDENTITY FULL")
    return True


def _fill_unavailable(before: Mapping[str, Any], name: str) -> Any:
    """The old row's value for an unavailable column. NULL does not count: if the replica identity has only some
    columns, `before` has NULL in the others, and an omitted large value is never NULL."""
    value = before.get(name)
    return UNAVAILABLE if value is None else value


def _by_name(row: Mapping[str, Any]) -> dict[str, Any]:
    """Key the row by lower-case names, as column names are case-insensitive."""
    return {name.lower(): value for name, value in row.items()}


def _row(
    inner: Mapping[str, Any], name: str, made: Mapping[str, Callable[[Any], Any]], placeholder: Placeholder
) -> Mapping[str, Any] | None:
    row = inner.get(name)
    if row is None or isinstance(row, dict) is False:
        if row is not None:
            raise Unreadable(f"{name!r} is {show_value(row)}: expected an object")
        return None
    row = placeholder.mark(row)
    if not made:
        return row
    try:
        return {
            column: made[column](value) if column in made and value is not None and value is not UNAVAILABLE else value
            for column, value in row.items()
        }
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise Unreadable(f"{name!r} does not match its schema: {error}") from error


@dataclass(slots=True)
class SchemaConversions:
    """Conversions of the columns, by schema. Caches the last schema, as schemas seldom change."""

    _last: tuple[Any, Mapping[str, Callable[[Any], Any]]] | None = None
    """Schema and conversions in one tuple, as several threads decode."""

    def find(self, schema: Any) -> Mapping[str, Callable[[Any], Any]]:
        if schema is None:
            return _NONE
        last = self._last
        if last is None or (schema is not last[0] and schema != last[0]):
            last = self._last = (schema, _conversions(schema))
        return last[1]


def _conversions(schema: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Conversions by column, from the field `after` or `before` of the envelope's Connect or Avro schema."""
    if not isinstance(schema, dict):
        return _NONE
    fields = schema.get("fields") or ()
    for one in fields:
        if one.get("field", one.get("name")) in ("after", "before"):
            found = _columns(one)
            if found is not None:
                return found
    return _NONE


def _columns(field: Mapping[str, Any]) -> Mapping[str, Callable[[Any], Any]] | None:
    made: dict[str, Callable[[Any], Any]] = {}
    kind = _not_null(field.get("type"))
    inside = field.get("fields") if "fields" in field else kind.get("fields") if isinstance(kind, dict) else None
    if inside is None:
        return None  # the type is a name that refers to the other field's record
    for one in inside:
        described = _not_null(one.get("type"))
        described = described if isinstance(described, dict) else one
        name = described.get("connect.name") or described.get("name") or ""
        parameters = described.get("connect.parameters") or described.get("parameters") or {}
        convert = _KNOWN.get(name)
        if name == "org.apache.kafka.connect.data.Decimal":
            convert = _decimal(int(parameters.get("scale", 0)))
        if convert is not None:
            made[one.get("field", one.get("name"))] = convert
    return made


def _not_null(kind: Any) -> Any:
    if isinstance(kind, list):
        return next((one for one in kind if one != "null"), None)
    return kind


def _decimal(scale: int) -> Callable[[Any], Any]:
    """Convert an unscaled number: big-endian bytes, in JSON as base64."""

    def convert(value: Any) -> Any:
        if isinstance(value, Decimal):
            return value
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        return Decimal(int.from_bytes(content, "big", signed=True)).scaleb(-scale)

    return convert


def _to_timedelta(value: int, unit_us: float) -> timedelta:
    if unit_us >= 1:
        return timedelta(microseconds=value * unit_us)
    micros, rest = divmod(value, round(1 / unit_us))
    if rest:
        raise ValueError(f"{value} ns is finer than a microsecond")
    return timedelta(microseconds=micros)


def _since_1970(unit_us: float) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, int):
            return value
        return _EPOCH + _to_timedelta(value, unit_us)

    return convert


def _without_zone(unit_us: float) -> Callable[[Any], Any]:
    inner = _since_1970(unit_us)

    def convert(value: Any) -> Any:
        found = inner(value)
        return found.replace(tzinfo=None) if isinstance(found, datetime) else found

    return convert


def _day(value: Any) -> Any:
    return date(1970, 1, 1) + timedelta(days=value) if isinstance(value, int) else value


def _of_day(unit_us: float) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, int):
            return value
        found: time = (_EPOCH + _to_timedelta(value, unit_us)).time()
        return found

    return convert


_KNOWN: Mapping[str, Callable[[Any], Any]] = {
    "io.debezium.time.Date": _day,
    "org.apache.kafka.connect.data.Date": _day,
    "io.debezium.time.Timestamp": _without_zone(1000),
    "org.apache.kafka.connect.data.Timestamp": _without_zone(1000),
    "io.debezium.time.MicroTimestamp": _without_zone(1),
    "io.debezium.time.NanoTimestamp": _without_zone(0.001),
    "io.debezium.time.Time": _of_day(1000),
    "org.apache.kafka.connect.data.Time": _of_day(1000),
    "io.debezium.time.MicroTime": _of_day(1),
    "io.debezium.time.NanoTime": _of_day(0.001),
}
"""Conversions by the name of a field's schema. Times with a zone are texts, and need no conversion."""
