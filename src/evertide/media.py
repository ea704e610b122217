"""The media types of request and response bodies."""

from __future__ import annotations

ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"
DOT = "text/vnd.graphviz"
EVENTS = "text/event-stream"
JSON = "application/json"
LINES = "application/x-ndjson"
MERMAID = "text/vnd.mermaid"
PARQUET = "application/vnd.apache.parquet"
TEXT = "text/plain"

FORMATS = {
    "json": JSON,
    "ndjson": LINES,
    "csv": CSV,
    "arrow": ARROW,
    "parquet": PARQUET,
    "text": TEXT,
    "mermaid": MERMAID,
    "dot": DOT,
}
"""The values of `?format=`."""

CONTENT_HEADER = "Evertide-Content"
"""The response header that names the stored content of a collection; a view that is computed again gets another."""

FACTS_HEADER = "Evertide-Query"
"""The response header that carries the fields of a JSON answer to a query beside its rows, for other formats:
`engine=duckdb, is_truncated=false, ...`."""

STALE_HEADER = "Evertide-Stale"
"""The response header that names views whose content stands at an earlier transaction than the other collections."""

TIME_HEADER = "Evertide-Time"
"""The response header with the time at which rows were read."""

TXID_HEADER = "Evertide-Txid"
"""The response header with the number that shapes list with the changes of a push; absent if there are none."""
