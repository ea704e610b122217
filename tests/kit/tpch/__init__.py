"""TPC-H: eight tables, 22 queries, and transactions that change all of them.

The queries are Spark SQL, and DuckDB runs them unchanged. They follow the standard with its validation parameters, with
three exceptions, each noted at the top of the query's file:

1. Some parameters are wider, or name a nation that has suppliers, so that results are not empty at a scale of 0.001,
   with 10 suppliers and 200 parts.
2. An ORDER BY with a LIMIT is extended to a total order, since otherwise the result is not deterministic.
3. Lists of column names (`AS c_orders (c_custkey, c_count)`) are written as aliases.

`rows` has the rows, from the program `tpchgen-cli` on PyPI; `refresh` generates the transactions."""

from tests.kit.tpch.refresh import refreshes
from tests.kit.tpch.rows import generated
from tests.kit.workload import read_workload

__all__ = ["WORKLOAD", "generated", "refreshes"]

WORKLOAD = read_workload(__name__)
"""The views are named q01 to q22."""
