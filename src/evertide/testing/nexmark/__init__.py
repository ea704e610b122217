"""Nexmark: an auction house as three streams of events and a side input, with the queries that are plain SQL.

The tables and what the queries ask are those of the benchmark's common form (persons, auctions, bids; q0 to q22). Here
they run over tables that may change in any way, not over streams, so some differ, each said at the top of its file:

1. Windows are groups by `window(...)` and `session_window(...)`; no watermark closes them.
2. An ORDER BY that picks rows goes on to a total order, as a bid has no key.
3. q12 takes the event's time for the time of processing, and q13 joins its side input as a table like the others:
   what depends on when it is asked is no view.

q10 is left out: it writes files and asks nothing. The generator is described in
`evertide.sources.generated.nexmark_events`, the transactions in `transactions`."""

from evertide.sources.generated.nexmark_events import SCHEMAS, Events, Nexmark
from evertide.testing.nexmark.transactions import transactions
from evertide.testing.workload import read_workload

__all__ = ["SCHEMAS", "WORKLOAD", "Events", "Nexmark", "transactions"]

WORKLOAD = read_workload(__name__)
"""The views are named q0 to q22."""
