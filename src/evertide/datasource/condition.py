"""Parse the option `where`: conditions on columns that must all hold, as in SQL.

    id >= 100 AND id < 200 AND customer IN ('ann', 'bob') AND note IS NOT NULL AND day = DATE '2026-11-15'

A condition is `column op literal` (=, <, <=, >, >=), `column BETWEEN a AND b`, `column IN (a, b)`, `column IS NULL` or
`column IS NOT NULL`. Names in backticks are taken literally, as in Spark. A condition is used twice:

1. On the statistics of a part, to decide whether it can contain such a row (`may_hold`): other parts are not read.
2. On rows, to select those that satisfy it (`make_mask`). This is exact, with Spark's semantics: NULL satisfies no
   comparison, NaN is greater than any number, -0.0 equals 0.0, strings compare by their bytes.

A literal must be a value of the column's type, or it is refused: nothing is rounded. `evertide.pgexpr` parses the text;
this module selects the conditions that statistics can answer. Use `DataFrame.where` for any other SQL condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.pgexpr.syntax import SyntaxNode, parse_clause
from evertide.pgexpr.tokens import refuse, shorten
from evertide.pgexpr.types.sqltypes import DATE, TIMESTAMP
from evertide.shard.parts.part import Part, Predicate, may_match

_COMPARE = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


@dataclass(frozen=True, slots=True)
class Condition:
    """`op` is an operator of `Predicate`; several values mean any of them."""

    column: str
    op: str
    values: tuple[Any, ...] = ()


def parse_conditions(text: str, schema: pa.Schema) -> tuple[Condition, ...]:
    """The conditions in a text, over columns of this schema; empty for an empty text."""
    try:
        return tuple(_ConditionReader(schema).read_conditions(parse_clause(text, name_quote="`"))) if text else ()
    except InvalidInput as error:
        raise InvalidInput(where=f"option where={text!r}", why=error.why) from error


def may_hold(part: Part, schema: pa.Schema, conditions: Sequence[Condition]) -> bool:
    """False only if the statistics prove that no row of the part satisfies all conditions."""
    return all(any(may_match(part, schema, [one]) for one in _list_predicates(condition)) for condition in conditions)


def _list_predicates(condition: Condition) -> list[Predicate]:
    if not condition.values:
        return [Predicate(condition.column, condition.op)]
    return [Predicate(condition.column, condition.op, value) for value in condition.values]


def make_mask(table: pa.Table, conditions: Sequence[Condition]) -> Any:
    """Which rows satisfy all conditions; None without conditions. A NULL means no."""
    masks = [_make_mask(table.column(condition.column), condition) for condition in conditions]
    return reduce(pc.and_, masks) if masks else None


def _make_mask(column: Any, condition: Condition) -> Any:
    if condition.op == "is null":
        return pc.is_null(column)
    if condition.op == "is not null":
        return pc.is_valid(column)
    comparisons = [_COMPARE[condition.op](column, pa.scalar(value, column.type)) for value in condition.values]
    matches = reduce(pc.or_, comparisons)
    if condition.op in (">", ">=") and pa.types.is_floating(column.type):
        return pc.or_(matches, pc.is_nan(column))
    return matches


class _ConditionReader:
    """Reads conditions from the syntax tree of a clause. Refusals give the position of the node."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names: dict[str, str] = {name.lower(): name for name in schema.names}

    def read_conditions(self, node: SyntaxNode) -> Iterator[Condition]:
        if node.form == "and":
            for arg in node.args:
                yield from self.read_conditions(arg)
        elif node.form == "between" and not node.facts:
            name = self._column(node.args[0])
            yield Condition(name, ">=", (self._literal(node.args[1], name),))
            yield Condition(name, "<=", (self._literal(node.args[2], name),))
        elif node.form == "in" or (node.form == "binary" and node.facts in _COMPARE):
            name = self._column(node.args[0])
            values = tuple(self._literal(arg, name) for arg in node.args[1:])
            yield Condition(name, "=" if node.form == "in" else node.facts, values)
        elif _is_null_test(node):
            yield Condition(self._column(node.args[0]), "is null")
        elif node.form == "not" and _is_null_test(node.args[0]):
            yield Condition(self._column(node.args[0].args[0]), "is not null")
        else:
            why = "expected conditions with =, <, <=, >, >=, BETWEEN, IN or IS [NOT] NULL, joined by AND"
            refuse(node.at, f"{shorten(node.token)}: {why}")

    def _column(self, node: SyntaxNode) -> str:
        if node.form != "column":
            refuse(node.at, f"{shorten(node.token)}: a condition must start with a column")
        name: str = node.facts[0]
        if name.lower() not in self._names:
            listed = ", ".join(self._schema.names)
            refuse(node.at, f"the collection has no column {shorten(name)}; it has {listed}")
        return self._names[name.lower()]

    def _literal(self, node: SyntaxNode, column: str) -> Any:
        declared = self._schema.field(column).type
        try:
            value = _read_literal(node, declared)
            if value is not None and pa.scalar(value, declared).as_py() == value:
                return value
        except (pa.ArrowException, ValueError, OverflowError, ArithmeticError):
            pass  # the literal is not a value of the type: refused below
        shown = node.args[0] if node.form in ("cast", "sign") else node
        return refuse(shown.at, f"{shorten(shown.token)} is not a value of column {column!r}, which is {declared}")


def _is_null_test(node: SyntaxNode) -> bool:
    return node.form == "is" and node.facts == "null"


def _read_literal(node: SyntaxNode, declared: Any) -> Any:
    """The literal as a value of the type; None if it is not a literal, or one of another type."""
    if node.form == "cast" and node.facts.type in (DATE, TIMESTAMP):
        node = node.args[0]
    if node.form == "string":
        return _read_text(node.facts, declared)
    if node.form == "constant":
        return node.facts if pa.types.is_boolean(declared) else None
    sign, number = (node.facts, node.args[0]) if node.form == "sign" else ("", node)
    if number.form != "number":
        return None
    if pa.types.is_integer(declared):
        return int(sign + number.facts)
    if pa.types.is_floating(declared):
        return float(sign + number.facts)
    return Decimal(sign + number.facts) if pa.types.is_decimal(declared) else None


def _read_text(text: str, declared: Any) -> Any:
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
