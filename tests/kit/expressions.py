"""Generates random expressions over columns of known kinds, which do not fail for any row.

whole       BIGINT, kept small
text        STRING, kept short
decimal     DECIMAL(20, 4)
real        DOUBLE that does not depend on the order of rows
truth       BOOLEAN
time        TIMESTAMP
date        DATE
span        INTERVAL DAY TO SECOND
pair        STRUCT<a: BIGINT, b: STRING>
list        ARRAY<BIGINT>
dict        MAP<STRING, BIGINT>, which has no order
variant     VARIANT, which cannot be compared or ordered
rough       DOUBLE whose last digits depend on the order of rows: never an operand
folded      STRING under a collation, by which different texts are equal

With `is_open`, functions may depend on the order of rows, which SQL leaves open. No column is rough then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.kit.runtime import RandomStream

_LITERALS = {
    "whole": ("0", "1", "2", "-3", "CAST(NULL AS BIGINT)"),
    "text": ("'a'", "'ab'", "''", "CAST(NULL AS STRING)"),
    "decimal": ("CAST(1.5 AS DECIMAL(20, 4))", "CAST(-0.25 AS DECIMAL(20, 4))"),
    "real": ("0.5D", "-0.0D", "double('NaN')"),
    "truth": ("true", "false", "CAST(NULL AS BOOLEAN)"),
    "time": ("TIMESTAMP'2026-01-01 00:00:04'",),
    "date": ("DATE'2026-01-02'", "CAST(NULL AS DATE)"),
    "span": ("INTERVAL '1 02:00:00' DAY TO SECOND", "CAST(NULL AS INTERVAL DAY TO SECOND)"),
    "pair": ("CAST(NULL AS STRUCT<a: BIGINT, b: STRING>)", "named_struct('a', 1L, 'b', 'a')"),
    "list": ("CAST(array() AS ARRAY<BIGINT>)", "array(1L, 2L)", "CAST(NULL AS ARRAY<BIGINT>)"),
    "dict": ("map('x', 1L)", "CAST(NULL AS MAP<STRING, BIGINT>)"),
    "variant": ('parse_json(\'{"a": [1, null], "b": "x"}\')', "CAST(NULL AS VARIANT)", "parse_json('null')"),
    "folded": ("CAST('A' AS STRING COLLATE UTF8_LCASE)",),
}
_FORMS = {
    "whole": (
        "({whole} + {whole})",
        "({whole} - 1)",
        "({whole} % 3)",
        "abs({whole})",
        "coalesce({whole}, 0)",
        "CAST(length({text}) AS BIGINT)",
        "CASE WHEN {truth} THEN {whole} ELSE {whole} END",
        "nullif({whole}, 1)",
        "least({whole}, {whole})",
        "{pair}.a",
        "{dict}['x']",
        "CAST(size({list}) AS BIGINT)",
        "aggregate({list}, 0L, (s, e) -> s + coalesce(e, 1L))",
        "CAST(extract(MINUTE FROM {span}) AS BIGINT)",
        "try_variant_get({variant}, '$.a', 'BIGINT')",
        "CAST(datediff({date}, DATE'2026-01-01') % 9 AS BIGINT)",
    ),
    "text": (
        "upper({text})",
        "substring(concat({text}, {text}), 1, 4)",
        "coalesce({text}, 'none')",
        "CAST({whole} AS STRING)",
        "{pair}.b",
        "schema_of_variant({variant})",
        "array_join(map_keys({dict}), '+')",
    ),
    "decimal": (
        "CAST({decimal} + {decimal} AS DECIMAL(20, 4))",
        "CAST({decimal} / 3 AS DECIMAL(20, 4))",
        "CAST({whole} AS DECIMAL(20, 4))",
        "coalesce({decimal}, 0)",
    ),
    "real": (
        "({real} + 1)",
        "(- {real})",
        "nanvl({real}, 1D)",
        "CAST({whole} AS DOUBLE)",
        "if({truth}, {real}, {real})",
    ),
    "truth": (
        "({whole} {compares} {whole})",
        "({text} {compares} {text})",
        "({decimal} {compares} {decimal})",
        "({real} {compares} {real})",
        "({truth} AND {truth})",
        "({truth} OR {truth})",
        "(NOT {truth})",
        "({whole} IN (0, 1, 3))",
        "({whole} BETWEEN 0 AND 2)",
        "({text} LIKE 'a%')",
        "({whole} <=> {whole})",
        "({text} IS NULL)",
        "({real} IS NOT NULL)",
        "({pair} {compares} {pair})",
        "({list} {compares} {list})",
        "({span} {compares} {span})",
        "({date} {compares} {date})",
        "(({text} COLLATE UTF8_LCASE) {compares} ({text} COLLATE UTF8_LCASE))",
        "(({text} COLLATE UNICODE_CI) = upper({text}))",
        "map_contains_key({dict}, {text})",
        "array_contains({list}, {whole})",
        "is_variant_null({variant})",
    ),
    "time": ("date_trunc('MINUTE', {time})", "({time} + INTERVAL 5 SECONDS)", "CAST({date} AS TIMESTAMP)"),
    "date": ("date_add({date}, 1)", "CAST({time} AS DATE)", "trunc({date}, 'MONTH')"),
    "span": ("make_dt_interval(0, 0, CAST({whole} % 5 AS INT), 1)", "({span} * 2)", "coalesce({span}, {span})"),
    "pair": ("named_struct('a', {whole}, 'b', {text})", "if({truth}, {pair}, {pair})"),
    "list": ("array({whole}, {whole})", "array_distinct({list})", "filter({list}, e -> e > 1)", "array_sort({list})"),
    "dict": ("map('x', {whole}, 'y', {whole})", "if({truth}, {dict}, {dict})", "map_filter({dict}, (k, v) -> v > 0)"),
    "variant": (
        "to_variant_object(named_struct('a', {whole}, 'b', {text}))",
        "CAST({whole} AS VARIANT)",
        "CAST({list} AS VARIANT)",
        "variant_get({variant}, '$.b', 'VARIANT')",
    ),
    "folded": ("coalesce({folded}, {folded})", "if({truth}, {folded}, {folded})"),
}
_COMPARES = ("=", "<", "<=", ">", "<>")
_DEPTH_MAX = 2


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    """A name or an expression."""
    kind: str


class Expressions:
    def __init__(self, rng: RandomStream, *, is_open: bool = False) -> None:
        self._chance = rng
        self._is_open = is_open

    def _one(self, choices: Sequence[str]) -> str:
        return choices[self._chance.below(len(choices))]

    def value(self, kind: str, columns: Sequence[Column], depth: int = _DEPTH_MAX) -> tuple[str, str]:
        """An expression of this kind, and the kind."""
        known = [column.name for column in columns if column.kind == kind]
        if known and (depth == 0 or self._chance.below(2)):
            return self._one(known), kind
        if depth == 0 or not self._chance.below(10):
            return self._one(_LITERALS[kind]), kind
        form = self._one(_FORMS[kind])
        parts = form.split("{")
        filled = [parts[0]]
        for part in parts[1:]:
            name, _, rest = part.partition("}")
            inner = self._one(_COMPARES) if name == "compares" else self.value(name, columns, depth - 1)[0]
            filled += [inner, rest]
        return "".join(filled), kind

    def truth(self, columns: Sequence[Column]) -> str:
        return self.value("truth", columns)[0]

    def several(self, columns: Sequence[Column], most: int) -> list[Column]:
        kinds = [column.kind for column in columns if column.kind != "rough"] or ["whole"]
        kinds += ["whole", "truth"]
        return [Column(*self.value(self._one(kinds), columns)) for _ in range(1 + self._chance.below(most))]

    def aggregate(self, columns: Sequence[Column], *, is_rough: bool = True) -> Column:
        """An aggregate function."""
        whole, decimal = (self.value(kind, columns)[0] for kind in ("whole", "decimal"))
        kind = self._one(("whole", "text", "decimal", "real", "truth", "time", "date", "span", "pair", "list"))
        operand = self.value(kind, columns)[0]
        distinct = self._one(("", "", "DISTINCT "))
        forms = [
            ("count(*)", "whole"),
            (f"count({distinct}{operand})", "whole"),
            (f"count(DISTINCT {operand}, {whole})", "whole"),
            (f"sum({distinct}{whole})", "whole"),
            (f"max({operand})", kind),
            (f"min({operand})", kind),
            (f"avg({distinct}{whole})", "real"),
            (f"sum({distinct}{decimal})", "decimal"),
            (f"avg({decimal})", "decimal"),
            (f"bit_xor({whole})", "whole"),
            (f"sum({self.value('span', columns)[0]})", "span"),
            (f"sort_array(collect_set({whole}))", "list"),
            (f"CAST(count_if({self.truth(columns)}) AS BIGINT)", "whole"),
            (f"max_by({whole}, {whole})", "whole"),
            (f"CAST(regr_count({whole}, {whole}) AS BIGINT)", "whole"),
            (f"bool_or({self.truth(columns)})", "truth"),
            (f"percentile({whole}, 0.5)", "real"),
            (f"CAST(size(collect_set({operand})) AS BIGINT)", "whole"),
            (f"array_join(sort_array(collect_list({self.value('text', columns)[0]})), '-')", "text"),
        ]
        if self._is_open:
            forms = [*forms[:2], *self._open(columns)]
        elif is_rough:
            real = self.value("real", columns)[0]
            forms += [(f"sum({real})", "rough"), (f"avg({real})", "rough"), (f"stddev({whole})", "rough")]
        text, found = forms[self._chance.below(len(forms))]
        if text.endswith(")") and text.split("(")[0] in ("count", "sum", "max", "avg") and not self._chance.below(4):
            text = f"{text} FILTER (WHERE {self.truth(columns)})"
        return Column(f"CAST({text} AS DECIMAL(20, 4))" if found == "decimal" else text, found)

    def _open(self, columns: Sequence[Column]) -> list[tuple[str, str]]:
        """Aggregate functions that depend on the order of rows, or that choose one of equal values."""
        real, text, folded = (self.value(kind, columns)[0] for kind in ("real", "text", "folded"))
        kind = self._one(("real", "text", "folded"))
        operand, by = self.value(kind, columns)[0], self.value(self._one(("real", "folded", "whole")), columns)[0]
        return [
            *((f"{name}({real})", "real") for name in ("sum", "avg", "stddev", "kurtosis", "mode", "median")),
            *((f"{name}({real}, abs({real}))", "real") for name in ("corr", "covar_samp", "regr_slope", "regr_r2")),
            (f"sum(DISTINCT {real}) + percentile(DISTINCT {real}, 0.5)", "real"),
            (f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {real})", "real"),
            *((f"{name}({operand})", kind) for name in ("first", "last", "any_value", "min", "max")),
            *((f"{name}({operand}, {by})", kind) for name in ("max_by", "min_by")),
            (f"CAST(collect_list({operand}) AS STRING)", "text"),
            (f"listagg({text}, '-') WITHIN GROUP (ORDER BY {text})", "text"),
            (f"listagg(CAST({real} AS STRING), '-') WITHIN GROUP (ORDER BY {real})", "text"),
            (f"count_if({folded} = {folded})", "whole"),
        ]
