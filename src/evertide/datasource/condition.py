"""Parse the option `where`: conditions on columns that must all hold, as in SQL.

    id >= 100 AND id < 200 AND customer IN ('ann', 'bob') AND note IS NOT NULL AND day = DATE '2026-11-15'

A condition is `column op literal` (=, <, <=, >, >=), `column BETWEEN a AND b`, `column IN (a, b)`, `column IS NULL` or
`column IS NOT NULL`. It is used twice:

1. On the statistics of a part, to decide whether it can contain such a row (`may_hold`): other parts are not read.
2. On rows, to select those that satisfy it (`mask`). This is exact, with Spark's semantics: NULL satisfies no
   comparison, NaN is greater than any number, -0.0 equals 0.0, strings compare by their bytes.

A literal must be a value of the column's type, or it is refused: nothing is rounded. Use `DataFrame.where` for any
other SQL condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.shard.parts.part import Part, Predicate, may_match

__all__ = ["Condition", "mask", "may_hold", "parse"]

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^']|'')*')|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_COMPARE = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
_WHERE = "option 'where'"


@dataclass(frozen=True, slots=True)
class Condition:
    """`op` is an operator of `Predicate`; several values mean any of them."""

    column: str
    op: str
    values: tuple[Any, ...] = ()


def parse(text: str, schema: pa.Schema) -> tuple[Condition, ...]:
    """The conditions in a text, over columns of this schema; empty for an empty text."""
    return tuple(_Parser(text, schema).conditions()) if text else ()


def may_hold(part: Part, schema: pa.Schema, conditions: Sequence[Condition]) -> bool:
    """False only if the statistics prove that no row of the part satisfies all conditions."""
    return all(any(may_match(part, schema, [one]) for one in _predicates(condition)) for condition in conditions)


def _predicates(condition: Condition) -> list[Predicate]:
    if not condition.values:
        return [Predicate(condition.column, condition.op)]
    return [Predicate(condition.column, condition.op, value) for value in condition.values]


def mask(table: pa.Table, conditions: Sequence[Condition]) -> Any:
    """Which rows satisfy all conditions; None without conditions. A NULL means no."""
    masks = [_mask(table.column(condition.column), condition) for condition in conditions]
    return reduce(pc.and_, masks) if masks else None


def _mask(column: Any, condition: Condition) -> Any:
    if condition.op == "is null":
        return pc.is_null(column)
    if condition.op == "is not null":
        return pc.is_valid(column)
    comparisons = [_COMPARE[condition.op](column, pa.scalar(value, column.type)) for value in condition.values]
    matches = reduce(pc.or_, comparisons)
    if condition.op in (">", ">=") and pa.types.is_floating(column.type):
        return pc.or_(matches, pc.is_nan(column))
    return matches


class _Parser:
    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._spelled: dict[str, str] = {name.lower(): name for name in schema.names}
        self._tokens = [*self._scan(), ("end", "")]
        self._at = 0

    def conditions(self) -> Iterator[Condition]:
        yield from self._condition()
        while self._take("word", "AND"):
            yield from self._condition()
        if self._tokens[self._at][0] != "end":
            raise self._refusal(f"AND is expected before {self._tokens[self._at][1]!r}")

    def _scan(self) -> Iterator[tuple[str, str]]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                raise self._refusal(f"{self._text[at:].strip()[:20]!r} is not understood")
            yield match.lastgroup, match[match.lastgroup]
            at = match.end()

    def _condition(self) -> Iterator[Condition]:
        name = self._column()
        if self._take("word", "IS"):
            negated = self._take("word", "NOT")
            self._expect("word", "NULL")
            yield Condition(name, "is not null" if negated else "is null")
        elif self._take("word", "BETWEEN"):
            yield Condition(name, ">=", (self._literal(name),))
            self._expect("word", "AND")
            yield Condition(name, "<=", (self._literal(name),))
        elif self._take("word", "IN"):
            self._expect("sign", "(")
            values = [self._literal(name)]
            while self._take("sign", ","):
                values.append(self._literal(name))
            self._expect("sign", ")")
            yield Condition(name, "=", tuple(values))
        else:
            kind, op = self._next()
            if kind != "sign" or op not in _COMPARE:
                raise self._refusal(f"=, <, <=, >, >=, BETWEEN, IN or IS is expected after {name!r}, not {op!r}")
            yield Condition(name, op, (self._literal(name),))

    def _column(self) -> str:
        kind, text = self._next()
        name = text[1:-1].replace("``", "`") if kind == "quoted" else text
        if kind not in ("word", "quoted") or name.lower() not in self._spelled:
            raise self._refusal(f"{text!r} is no column; there are {self._schema.names}")
        return self._spelled[name.lower()]

    def _literal(self, column: str) -> Any:
        kind, text = self._next()
        if kind == "word" and text.upper() in ("DATE", "TIMESTAMP") and self._tokens[self._at][0] == "text":
            kind, text = self._next()
        declared = self._schema.field(column).type
        try:
            value = _value(kind, text, declared)
            if value is not None and pa.scalar(value, declared).as_py() == value:
                return value
        except (pa.ArrowException, ValueError, OverflowError, ArithmeticError):
            pass  # the literal is not a value of the type: refused below
        raise self._refusal(f"{text!r} is no value of column {column!r}, which is {declared}")

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _take(self, kind: str, text: str) -> bool:
        token = self._tokens[self._at]
        if token[0] == kind and token[1].upper() == text:
            self._at += 1
            return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        if not self._take(kind, text):
            raise self._refusal(f"{text!r} is expected before {self._tokens[self._at][1]!r}")

    def _refusal(self, why: str) -> InvalidInput:
        return InvalidInput(where=_WHERE, why=f"{why}, in {self._text!r}")


def _value(kind: str, text: str, declared: Any) -> Any:
    """The literal as a value of the type; None if it is of another kind."""
    if kind == "text":
        return _of_text(text[1:-1].replace("''", "'"), declared)
    if kind == "word" and pa.types.is_boolean(declared):
        return {"TRUE": True, "FALSE": False}.get(text.upper())
    if kind != "number":
        return None
    if pa.types.is_integer(declared):
        return int(text)
    if pa.types.is_floating(declared):
        return float(text)
    return Decimal(text) if pa.types.is_decimal(declared) else None


def _of_text(text: str, declared: Any) -> Any:
    if pa.types.is_string(declared):
        return text
    if pa.types.is_date32(declared):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(declared):
        moment = datetime.fromisoformat(text)
        if declared.tz is None:
            return moment if moment.tzinfo is None else None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return None
