"""Convert one value of user data to a value of a column: exactly, or not at all.

`convert_value` converts Python and JSON values, `parse_value` converts text (a field of a CSV file). Both return a
value that Arrow accepts for the column, or raise `Misfit`.

1. A whole number fits an integer column if it is in range, whatever its type (5, 5.0, Decimal 5). A boolean is not a
   number. A text is a number only in formats that have nothing but texts (CSV).
2. A whole number becomes a DOUBLE or FLOAT only if the conversion is exact. A fraction is rounded to the column's
   precision, but never to infinity.
3. DECIMAL accepts whole numbers, decimals, texts, and floats by their shortest text (0.1 is 0.1), if no digit is lost.
4. Dates and times may be ISO 8601 texts. A TIMESTAMP without a zone is UTC, on every machine.
5. BINARY accepts bytes, or base64 as text.
6. Lists, mappings and structs are converted element by element. A missing field of a struct is NULL; an unknown field
   is an error.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from evertide.errors import InvalidInput
from evertide.rows.char_types import fit_char_types, read_declared_type
from evertide.rows.conform import list_fields
from evertide.sources.contract import TableDeclaration
from evertide.sources.values.kinds import INTEGERS, describe_values, is_variant, sql_name
from evertide.sources.values.strict_json import RepeatedName, decode_json

_SHOWN_MAX = 80
_VARIANT_LEVELS_MAX = 200
"""Fixed, so that every process accepts the same values. Python's own limit depends on the depth of the stack."""
_FLOAT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_CLOCK = r"(\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?"
_TIME = re.compile(_CLOCK, re.ASCII)
_TIMESTAMP = re.compile(
    rf"(\d{{4}})-(\d{{2}})-(\d{{2}})(?:[T ]{_CLOCK}\s?(Z|UTC|[+-]\d{{2}}(?::?\d{{2}})?)?)?", re.ASCII
)
_DURATION = re.compile(r"([+-]?)(?:(\d{1,9}) )?(\d{1,9}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?", re.ASCII)
_SPECIAL = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf, "inf": math.inf, "-inf": -math.inf}
_TRUTH = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}

_QUOTED = re.compile(r"(?:(?:DATE|TIMESTAMP|TIMESTAMP_NTZ|TIME)\s*)?'((?:[^'\\]|'')*)'", re.IGNORECASE)
_BARE = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?|true|false", re.IGNORECASE)


class Misfit(Exception):
    """A value does not fit its column; the text is the reason."""


class Number(str):
    """A number as JSON wrote it: a text, so that nothing is rounded before its column is known."""

    __slots__ = ()


def json_decoder(schema: pa.Schema) -> msgspec.json.Decoder[Any]:
    """A decoder for rows of the schema, which keeps the text of numbers if a column needs it; that is slower."""
    is_exact = any(_needs_exact(field.type) for field in schema)
    return msgspec.json.Decoder(float_hook=Number) if is_exact else msgspec.json.Decoder()


def _needs_exact(kind: Any) -> bool:
    if kinds.is_decimal(kind) or is_variant(kind) or kinds.is_float32(kind):
        return True
    return any(_needs_exact(field.type) for field in list_fields(kind))


def show_value(value: object) -> str:
    """A value in a message, shortened if it is long."""
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN_MAX:
        return f"a number of {value.bit_length()} bits"
    text = repr(str(value)) if isinstance(value, Number) else repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def convert_value(value: Any, kind: Any) -> Any:
    """Convert a value to the type of a column. None stays None: `fit` checks NOT NULL."""
    return None if value is None else _find_converter(kind)(value, kind)


def parse_value(text: str, kind: Any) -> Any:
    """Convert a text to the type of a column. Lists, mappings, structs and VARIANT are written as JSON."""
    if kind in INTEGERS and _INTEGER.fullmatch(text):
        return _convert_integer(int(text), kind) if len(text) <= 40 else _refuse(text, kind)
    if kinds.is_floating(kind):
        return _parse_float(text, kind)
    if kinds.is_boolean(kind):
        truth = _TRUTH.get(text.lower())
        return _refuse(text, kind) if truth is None else truth
    if kinds.is_nested(kind):
        try:
            value = decode_json(msgspec.json.Decoder(float_hook=Number), text.encode())
        except RepeatedName as error:
            raise Misfit(f"{show_value(text)} is not a {sql_name(kind)}: {error}") from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Misfit(f"{show_value(text)} is not JSON, which a {sql_name(kind)} needs: {error}") from error
        return convert_value(value, kind)
    return convert_value(text, kind)


def _refuse(value: object, kind: Any) -> NoReturn:
    raise Misfit(f"{show_value(value)} is not a {sql_name(kind)}: expected {describe_values(kind)}")


def _convert_integer(value: Any, kind: Any) -> int:
    is_float = isinstance(value, float | np.floating) and float(value).is_integer()
    if is_float or (isinstance(value, int | np.integer) and not isinstance(value, bool)):
        number = int(value)
    elif isinstance(value, Number | Decimal) and _is_whole(Decimal(value)):
        number = int(Decimal(value))
    else:
        return _refuse(value, kind)
    least, most = INTEGERS[kind]
    return number if least <= number <= most else _refuse(value, kind)


def _is_whole(number: Decimal) -> bool:
    """A number with a huge exponent is refused before its digits are expanded."""
    return number.is_finite() and number.adjusted() < 40 and number == number.to_integral_value()


def _convert_float(value: Any, kind: Any) -> float:
    if isinstance(value, str):
        special = _SPECIAL.get(value.lower())
        if special is not None:
            return special
        return _parse_float(value, kind) if isinstance(value, Number) else _refuse(value, kind)
    if isinstance(value, float | np.floating):
        return _check_overflow(float(value), value, kind)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        exact = _find_nearest_float(str(int(value)), kind) if abs(int(value)) < 1 << 128 else math.inf
        return exact if math.isfinite(exact) and int(exact) == int(value) else _refuse_inexact(value, kind)
    if isinstance(value, Decimal):
        return _SPECIAL[str(value).lower()] if not value.is_finite() else _parse_float(str(value), kind)
    return _refuse(value, kind)


def _parse_float(text: str, kind: Any) -> float:
    special = _SPECIAL.get(text.lower())
    if special is not None:
        return special
    if not _FLOAT.fullmatch(text):
        return _refuse(text, kind)
    return _check_overflow(_find_nearest_float(text, kind), text, kind)


def _find_nearest_float(text: str, kind: Any) -> float:
    """Round once, from the text to the column's precision: rounding twice may give another number."""
    found: float = pa.scalar(text.lstrip("+")).cast(kind).as_py()
    return found


def _check_overflow(number: float, value: object, kind: Any) -> float:
    is_too_large = kind == pa.float32() and math.isfinite(number) and math.isinf(_round_to_single(number))
    was_finite = not isinstance(value, float | np.floating) and math.isinf(number)
    return _refuse(value, kind) if is_too_large or was_finite else number


def _round_to_single(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _refuse_inexact(value: object, kind: Any) -> NoReturn:
    raise Misfit(f"{show_value(value)} is not a {sql_name(kind)}: the conversion would not be exact")


def _convert_boolean(value: Any, kind: Any) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_) else _refuse(value, kind)


def _convert_string(value: Any, kind: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        return _refuse(value, kind)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Misfit(f"{show_value(value)} is not a {sql_name(kind)}: the text cannot be encoded as UTF-8") from error
    return value


def _convert_binary(value: Any, kind: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        return _refuse(value, kind)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return _refuse(value, kind)


def _convert_date(value: Any, kind: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    try:
        day: date = date(int(found[1]), int(found[2]), int(found[3])) if found else _refuse(value, kind)
    except ValueError:
        return _refuse(value, kind)
    return day


def _convert_timestamp(value: Any, kind: Any) -> datetime:
    moment = value if isinstance(value, datetime) else _parse_moment(value, kind)
    if kind.tz is None:
        return moment if moment.tzinfo is None else _refuse(value, kind)
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return _refuse(value, kind)


def _parse_moment(value: Any, kind: Any) -> datetime:
    found = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return _refuse(value, kind)
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    at = (int(part or 0) for part in (year, month, day, hour, minute, second))
    try:
        return datetime(*at, _parse_micros(fraction), tzinfo=_parse_zone(zone))  # type: ignore[misc,arg-type]
    except ValueError:
        return _refuse(value, kind)


def _parse_micros(fraction: str | None) -> int:
    digits = (fraction or "").ljust(6, "0")
    if digits[6:].strip("0"):
        raise ValueError("finer than a microsecond")
    return int(digits[:6])


def _parse_zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text in {"Z", "UTC"}:
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[3:].lstrip(":") or 0)
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _convert_time(value: Any, kind: Any) -> time:
    if isinstance(value, time) and value.tzinfo is None:
        return value
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    try:
        clock: time = (
            time(int(found[1]), int(found[2]), int(found[3] or 0), _parse_micros(found[4]))
            if found
            else _refuse(value, kind)
        )
    except ValueError:
        return _refuse(value, kind)
    return clock


def _convert_duration(value: Any, kind: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return _refuse(value, kind)
    sign, days, hours, minutes, seconds, fraction = found.groups()
    try:
        span = timedelta(int(days or 0), int(seconds), _parse_micros(fraction), minutes=int(minutes), hours=int(hours))
    except OverflowError:
        return _refuse(value, kind)
    return -span if sign == "-" else span


def _convert_decimal(value: Any, kind: Any) -> Decimal:
    number = _to_decimal(value, kind)
    digits = number.as_tuple()
    if not isinstance(digits.exponent, int) or digits.exponent > 80:
        return _refuse(value, kind)
    after = len("".join(map(str, digits.digits)).rstrip("0")) - len(digits.digits) - digits.exponent
    is_in_range = number == 0 or number.adjusted() < kind.precision - kind.scale
    if not is_in_range or (number != 0 and after > kind.scale):
        return _refuse(value, kind)
    return number or Decimal(0)


def _to_decimal(value: Any, kind: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return Decimal(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return Decimal(repr(value))
    if isinstance(value, str) and len(value) <= 200 and _FLOAT.fullmatch(value):
        return Decimal(value)
    return _refuse(value, kind)


def _convert_list(value: Any, kind: Any) -> list[Any]:
    if not isinstance(value, list | tuple | np.ndarray):
        return _refuse(value, kind)
    return [_convert_inner(element, kind.value_field, f"element {at}") for at, element in enumerate(value, 1)]


def _convert_inner(value: Any, field: Any, place: str) -> Any:
    if value is None and not field.nullable:
        raise Misfit(f"{place} is NULL, but it is {sql_name(field.type)} NOT NULL")
    try:
        return convert_value(value, field.type)
    except Misfit as error:
        raise Misfit(f"{place}: {error}") from error


def _convert_map(value: Any, kind: Any) -> list[tuple[Any, Any]]:
    """Keys in JSON are always texts: they are parsed as the key's type."""
    if isinstance(value, Mapping):
        pairs = [(_convert_map_key(key, kind.key_type), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        pairs = [(_convert_inner(key, kind.key_field, "a key"), item) for key, item in value]
    else:
        return _refuse(value, kind)
    seen: set[str] = set()
    for key, _ in pairs:
        if key is None or repr(key) in seen:
            raise Misfit(f"{show_value(value)} is not a {sql_name(kind)}: key {show_value(key)} is NULL or repeated")
        seen.add(repr(key))
    return [(key, _convert_inner(item, kind.item_field, f"value of {show_value(key)}")) for key, item in pairs]


def _convert_map_key(key: Any, kind: Any) -> Any:
    return parse_value(key, kind) if isinstance(key, str) else convert_value(key, kind)


def _convert_struct(value: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return _refuse(value, kind)
    names = {field.name for field in kind}
    unknown = [key for key in value if key not in names]
    if unknown:
        raise Misfit(f"{show_value(unknown[0])} is not a field of {sql_name(kind)}: expected {describe_values(kind)}")
    return {field.name: _convert_inner(value.get(field.name), field, f"field {field.name!r}") for field in kind}


def _convert_variant(value: Any, kind: Any) -> dict[str, bytes]:
    """Encode with Spark's own code, so that Spark can read the result."""
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - slow to import, and few tables have a VARIANT

    if isinstance(value, VariantVal):
        return {"value": value.value, "metadata": value.metadata}
    if isinstance(value, Mapping) and set(value) == {"value", "metadata"} and isinstance(value["value"], bytes):
        return {"value": value["value"], "metadata": bytes(value["metadata"])}
    try:
        made = VariantVal.parseJson(_write_json(value, _VARIANT_LEVELS_MAX))
    except (TypeError, ValueError, msgspec.MsgspecError, UnicodeError):
        return _refuse(value, kind)
    return {"value": bytes(made.value), "metadata": bytes(made.metadata)}


def _write_json(value: Any, levels: int) -> str:
    """`Number` is written as it was read. `Misfit` if lists and objects are nested deeper than `levels`."""
    if isinstance(value, Number):
        return str(value)
    if levels == 0 and isinstance(value, Mapping | list | tuple):
        raise Misfit(f"lists and objects are nested deeper than the {_VARIANT_LEVELS_MAX} levels of a VARIANT")
    if isinstance(value, Mapping):
        pairs = (f"{_write_json(str(key), levels)}:{_write_json(item, levels - 1)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_write_json(item, levels - 1) for item in value) + "]"
    if value is None or isinstance(value, bool | int | float | str):
        return msgspec.json.encode(value).decode()
    raise TypeError(type(value).__name__)


_CONVERTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]], ...] = (
    (kinds.is_integer, _convert_integer),
    (kinds.is_floating, _convert_float),
    (kinds.is_boolean, _convert_boolean),
    (kinds.is_string, _convert_string),
    (kinds.is_binary, _convert_binary),
    (kinds.is_date, _convert_date),
    (kinds.is_timestamp, _convert_timestamp),
    (kinds.is_time, _convert_time),
    (kinds.is_duration, _convert_duration),
    (kinds.is_decimal, _convert_decimal),
    (kinds.is_map, _convert_map),
    (kinds.is_list, _convert_list),
    (is_variant, _convert_variant),
    (kinds.is_struct, _convert_struct),
)
_BY_KIND: dict[Any, Callable[[Any, Any], Any]] = {}


def _find_converter(kind: Any) -> Callable[[Any, Any], Any]:
    found = _BY_KIND.get(kind)
    if found is None:
        found = next((convert for is_kind, convert in _CONVERTERS if is_kind(kind)), _refuse)
        if not kinds.is_nested(kind):
            _BY_KIND[kind] = found
    return found


def read_default(declaration: TableDeclaration, column: str) -> Any:
    """Parse the column's DEFAULT, which must be a constant: an expression would need Spark for every row."""
    sql = declaration.defaults.get(column, "").strip()
    if not sql or sql.upper() == "NULL":
        return None
    quoted = _QUOTED.fullmatch(sql)
    text = quoted[1].replace("''", "'") if quoted else sql if _BARE.fullmatch(sql) else None
    where = f"{declaration.place}, column {column!r}"
    if text is None:
        why = f"DEFAULT {sql} is not a constant; use a constant, or give the value in each row"
        raise InvalidInput(where=where, why=why)
    field = declaration.schema.field(column)
    try:
        value = parse_value(text, field.type)
    except Misfit as error:
        raise InvalidInput(where=where, why=f"DEFAULT {sql}: {error}") from error
    declared = read_declared_type(field)
    misfits = {} if declared is None else fit_char_types(pa.array([value], field.type), declared)[1]
    if misfits:
        raise InvalidInput(where=where, why=f"DEFAULT {sql}: {misfits[0]}")
    return value
