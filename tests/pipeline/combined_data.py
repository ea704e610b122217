"""What the random runs of `tests.pipeline.combined` are made of: keys, values, tables and views."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from evertide.sources.generated.seeded import RandomStream

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]
"""A NaN with a sign and a payload."""
HUGE = Decimal("9999999999999999999999999999.9999999999")
"""The largest DECIMAL(38, 10). Python's arithmetic would round it."""

KEYS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "bigint": ("BIGINT", lambda number: number * (1 << 58) - 7),
    "tinyint": ("TINYINT", lambda number: number - 8),
    "string": ("STRING", lambda number: ["", "a", "A", "ä", "\U0001f600"][number % 5] * (1 + number // 5)),
    "float": ("FLOAT", lambda number: [math.inf, -0.0, 0.0, math.nan, OTHER_NAN][number] if number < 5 else number / 8),
    "double": (
        "DOUBLE",
        lambda number: [math.inf, -0.0, 0.0, 5e-324, OTHER_NAN, math.nan][number] if number < 6 else number / 7,
    ),
    "decimal": (
        "DECIMAL(38, 10)",
        lambda number: (HUGE, HUGE.copy_negate())[number] if number < 2 else Decimal(number - 8),
    ),
    "date": ("DATE", lambda number: dt.date(1, 1, 1) + dt.timedelta(days=number * 200_000)),
    "timestamp": (
        "TIMESTAMP",
        lambda number: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=number * 9999, microseconds=number),
    ),
    "local": (
        "TIMESTAMP_NTZ",
        lambda number: dt.datetime(1, 1, 1) + dt.timedelta(days=number * 200_000, microseconds=number),  # noqa: DTZ001
    ),
    "time": (
        "TIME",
        lambda number: dt.time(23, 59, 59, 999_999) if number == 0 else dt.time(number, number * 3, 0, number),
    ),
    "interval": (
        "INTERVAL DAY TO SECOND",
        lambda number: dt.timedelta(days=(number - 8) * 10_000, microseconds=number),
    ),
    "struct": (
        "STRUCT<a: INT, b: DOUBLE>",
        lambda number: {"a": [None, 1][number % 2], "b": [0.0, -0.0, OTHER_NAN, math.nan, None][number % 5]},
    ),
    "binary": ("BINARY", lambda number: bytes([0, 255, number]) * (number % 3) + bytes([number])),
    "boolean": ("BOOLEAN", lambda number: number % 2 == 0),
}
"""Types of the key of the table `t`, and the value of a number below 16 in each."""
FLOATS = (0.0, -0.0, math.nan, OTHER_NAN, math.inf, -math.inf, 1e16, -1e16, 1.0, 0.1, -3.5, 5e-324, None)
DECIMALS = (Decimal(0), Decimal("1e-10"), Decimal("-9999999999.9999999999"), Decimal("7.25"), None)
WIDE_DECIMALS = (HUGE, HUGE.copy_negate(), Decimal(0), Decimal("1e-10"), Decimal("-1e-10"), None)
TEXTS = ("x", "X", "x ", "", "é", "7", "008", None)
BAD = "no number"
"""A text that makes the view `numbers` fail, and one of the definitions of `parsed`."""
NO_JSON = "no json"
"""A text that makes the other definitions of `parsed` fail."""

VIEWS: dict[str, tuple[str, ...]] = {
    "sums": (
        "SELECT g, count(*) AS n, count(x) AS nx, min(x) AS lo, max(x) AS hi, sum(d) AS d FROM t GROUP BY g",
        "SELECT g, count(*) AS n, count(DISTINCT x) AS nx, min(d) AS lo, max(d) AS hi FROM t GROUP BY g",
    ),
    "pairs": (
        "SELECT t.k, t.g, u.v FROM t JOIN u ON t.g = u.g",
        "SELECT t.k, t.g, u.v FROM t LEFT JOIN u ON t.g = u.g AND u.v > 2",
        "SELECT t.k, u.g, u.v FROM t FULL JOIN u ON t.g = u.g AND 10 DIV if(t.g IS NULL, 0, 1) > u.v",
    ),
    "ranked": (
        "SELECT k, g, row_number() OVER (PARTITION BY g ORDER BY x, k) AS place FROM t",
        "SELECT k, g, lag(d) OVER (PARTITION BY g ORDER BY x DESC, k) AS before FROM t",
    ),
    "few": ("SELECT k, x FROM t ORDER BY x DESC, k LIMIT 3", "SELECT k, x FROM t ORDER BY x, k LIMIT 4 OFFSET 1"),
    "shares": (
        "SELECT g, v, 100 / v AS share FROM u",
        "SELECT g, count(*) AS n, sum(100 DIV v) AS share FROM u GROUP BY g",
    ),
    "numbers": ("SELECT k, CAST(s AS INT) AS number FROM t WHERE s IS NOT NULL",),
    "parsed": (
        "SELECT k, to_json(parse_json(j)) AS a FROM t",
        "SELECT k, from_json(j, 'a INT', map('mode', 'FAILFAST')).a AS a FROM t",
        "SELECT k, from_csv(s, 'a INT', map('mode', 'FAILFAST')).a AS a FROM t",
        "SELECT g, max(xpath_string(concat('<a>', j, if(j = 'no json', '</b>', '</a>')), 'a')) AS a FROM t GROUP BY g",
    ),
    "folded": (
        "SELECT k, c FROM t WHERE c COLLATE UTF8_LCASE = 'x'",
        "SELECT k, rank() OVER (PARTITION BY g ORDER BY c COLLATE UTF8_LCASE) AS place FROM t",
        "SELECT g, lower(max(c COLLATE UTF8_LCASE)) AS hi, lower(min(c COLLATE UTF8_LCASE)) AS lo FROM t GROUP BY g",
    ),
    "extremes": (
        "SELECT g, min(e) AS lo, max(e) AS hi FROM t GROUP BY g",
        "SELECT e, count(*) AS n FROM t GROUP BY e",
        "SELECT x, count(*) AS n FROM t GROUP BY x",
    ),
    "read": ("SELECT k, count(*) AS n, sum(n) AS s FROM m GROUP BY k", "SELECT k, n FROM m ORDER BY n DESC, k LIMIT 5"),
    "above": ("SELECT n, count(*) AS groups FROM sums GROUP BY n",),
}
"""By view, its definitions. `shares` fails if a `v` is 0, `numbers` if an `s` is no number, `parsed` if a text cannot
be parsed, with errors that PySpark has no class for; `above` reads `sums`. The condition of the last `pairs` fails for
a `g` that is NULL, which has no partner, so that the view does not fail."""
READS = {"pairs": "u", "shares": "u", "read": "m"}
"""By view, the table that it needs and that may be undeclared."""


def make_script(key: str, tables: Mapping[str, bool], views: Mapping[str, int], files: str, sink: str) -> str:
    """`tables` says which of `u` and `m` are declared, `files` is the directory of `m`, `sink` that of `sums`."""
    kind = KEYS[key][0]
    columns = (
        "g STRING, x DOUBLE, d DECIMAL(20, 10), s STRING, e DECIMAL(38, 10), j STRING, c STRING COLLATE UTF8_LCASE"
    )
    statements = [f"CREATE TABLE t (k {kind} NOT NULL, {columns}, PRIMARY KEY (k));"]
    if tables["u"]:
        statements.append("CREATE TABLE u (g STRING, v INT);")
    if tables["m"]:
        statements.append(f"CREATE TABLE m (k BIGINT, n BIGINT) USING csv OPTIONS (path '{files}', settle_ms '0');")
    for name, version in views.items():
        properties = ""
        if name == "sums" and sink:
            lake = sink.rpartition("/")[2]
            facts = {
                "evertide.sinks": lake,
                f"evertide.sink.{lake}.connector": "files",
                f"evertide.sink.{lake}.path": sink,
            }
            listed = ", ".join(f"'{fact}' = '{value}'" for fact, value in facts.items())
            properties = f"TBLPROPERTIES ({listed}) "
        statements.append(f"CREATE MATERIALIZED VIEW {name} {properties}AS {VIEWS[name][version]};")
    return "\n".join(statements)


def make_row(key: str, number: int, stream: RandomStream) -> dict[str, Any]:
    """A row of `t`."""
    pick = stream.below
    return {
        "k": KEYS[key][1](number),
        "g": TEXTS[pick(len(TEXTS))],
        "x": FLOATS[pick(len(FLOATS))],
        "d": DECIMALS[pick(len(DECIMALS))],
        "s": None if pick(4) == 0 else BAD if pick(30) == 0 else str(pick(1000) - 500),
        "e": WIDE_DECIMALS[pick(len(WIDE_DECIMALS))],
        "j": NO_JSON if pick(40) == 0 else '{"a": 1}' if pick(2) else None,
        "c": TEXTS[pick(len(TEXTS))],
    }
