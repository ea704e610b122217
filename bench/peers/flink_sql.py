"""The tables and queries of Nexmark in Flink's SQL.

1. Flink's window functions need a watermark. It is a day late, so that no event is dropped in any order of files, and
   windows close when all is read: the final result is that of a query over all rows.
2. In Flink an average of integers is an integer, so the queries average doubles.
3. q6 is omitted: Flink does not support OVER on a table with updates.
"""

from __future__ import annotations

import re
from pathlib import Path

from bench.peers.nexmark import inputs_of
from tests.kit.nexmark import WORKLOAD

_COLUMNS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, "
    "dateTime TIMESTAMP(3), extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
    "dateTime TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "dateTime TIMESTAMP(3), extra STRING",
    "side_input": "key BIGINT, `value` STRING",
}
_DAY = "date_format(dateTime, 'yyyy-MM-dd')"
_COUNTS = """
    SELECT auction, window_start AS starttime, window_end AS endtime, count(*) AS num
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
"""
_OWN = {
    "q4": WORKLOAD.queries["q4"].replace("avg(final)", "avg(CAST(final AS DOUBLE))"),
    "q5": f"""
        SELECT c.starttime, c.auction, c.num
        FROM ({_COUNTS}) AS c
        JOIN (SELECT starttime, endtime, max(num) AS maxn FROM ({_COUNTS}) GROUP BY starttime, endtime) AS m
        ON c.starttime = m.starttime AND c.endtime = m.endtime AND c.num >= m.maxn
    """,
    "q7": """
        SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
        FROM bid b JOIN (
            SELECT max(price) AS maxprice, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end
        ) AS h ON b.price = h.maxprice
        WHERE b.dateTime BETWEEN h.endtime - INTERVAL '10' SECOND AND h.endtime
    """,
    "q8": """
        SELECT p.id, p.name, p.starttime
        FROM (
            SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end
        ) AS p
        JOIN (
            SELECT seller, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end
        ) AS a ON p.id = a.seller AND p.starttime = a.starttime AND p.endtime = a.endtime
    """,
    "q12": """
        SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
    """,
    "q13": WORKLOAD.queries["q13"].replace("s.value", "s.`value`"),
    "q14": WORKLOAD.queries["q14"].replace("length(", "char_length("),
    "q15": WORKLOAD.queries["q15"].replace("AS day,", "AS `day`,"),
    "q16": WORKLOAD.queries["q16"].replace("AS day,", "AS `day`,").replace("AS minute,", "AS `minute`,"),
    "q17": WORKLOAD.queries["q17"].replace("AS day,", "AS `day`,").replace("avg(price)", "avg(CAST(price AS DOUBLE))"),
    "q22": WORKLOAD.queries["q22"]
    .replace("split_part(url, '/', 4)", "split_index(url, '/', 3)")
    .replace("split_part(url, '/', 5)", "split_index(url, '/', 4)")
    .replace("split_part(url, '/', 6)", "split_index(url, '/', 5)"),
}
_WORD = re.compile(r"\bdateTime\b")


def _quote(text: str) -> str:
    """Quote the column `dateTime`, a reserved word in Flink."""
    return _WORD.sub("`dateTime`", text)


FLINK = {name: _quote(_OWN.get(name, text)) for name, text in WORKLOAD.queries.items() if name not in ("q6", "q11")}
"""The queries by name."""


def flink_tables(query: str, data: Path, *, is_watched: bool) -> dict[str, str]:
    """The statements by table. With `is_watched`, directories are polled, and the job does not end."""
    return {name: _table(name, data / name, is_watched=is_watched) for name in inputs_of(query)}


def _table(name: str, path: Path, *, is_watched: bool) -> str:
    watermark = "" if name == "side_input" else ", WATERMARK FOR dateTime AS dateTime - INTERVAL '1' DAY"
    options = {"connector": "filesystem", "path": path.as_uri(), "format": "parquet", "parquet.utc-timezone": "true"}
    if is_watched:
        options["source.monitor-interval"] = "1 s"
    listed = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
    return f"CREATE TABLE {name} ({_quote(_COLUMNS[name] + watermark)}) WITH ({listed})"
