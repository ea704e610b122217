"""TPC-H: eight tables, 22 queries, and transactions that change all of them.

The queries are Spark SQL, and DuckDB takes them as they are. They follow the standard with its validation parameters,
but for three things, each said at the top of the query's file:

1. Some parameters are wider, or name a nation that has suppliers, so that there is something to see at a scale of
   0.001, where there are 10 suppliers and 200 parts.
2. An ORDER BY under a LIMIT goes on to a total order, as otherwise the result is not one.
3. Lists of column names (`AS c_orders (c_custkey, c_count)`) are written as aliases.

Rows come from `tpchgen-cli`, a program on PyPI that makes exactly the standard's."""

from evertide.testing.tpch.refresh import refreshes
from evertide.testing.tpch.rows import generated
from evertide.testing.workload import read_workload

__all__ = ["WORKLOAD", "generated", "refreshes"]

WORKLOAD = read_workload(__name__)
"""The views are named q01 to q22."""
