"""Nexmark: an auction house as three streams of events and a side input, with the queries that are plain SQL.

Tables and queries are those of the benchmark's common form (persons, auctions, bids; q0 to q22). They run over tables
that change in any way, not over streams, so some queries differ, as the top of each file says:

1. Windows are groups by `window(...)` and `session_window(...)`; no watermark closes them.
2. An ORDER BY that selects rows is extended to a total order, since a bid has no key.
3. q12 uses the event time as the processing time, and q13 joins its side input as a table: the result of a view cannot
   depend on when the query runs.

q10 is omitted: it only writes files. `evertide.sources.generated.nexmark_events` generates the events, `transactions`
the transactions."""

from evertide.sources.generated.nexmark_events import SCHEMAS, Events, Nexmark
from tests.kit.nexmark.transactions import transactions
from tests.kit.workload import read_workload

__all__ = ["SCHEMAS", "WORKLOAD", "Events", "Nexmark", "transactions"]

WORKLOAD = read_workload(__name__)
"""The views are named q0 to q22."""
