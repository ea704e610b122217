"""Rewrites a query of Spark so that DuckDB gives the same answer, or refuses it.

translate    `translate_query`, the entry point, and its rules; texts that the two parsers could read differently
queries      SELECT, WITH, set operations, ORDER BY, LIMIT
relations    FROM, joins, and the resolution of names
expressions  expressions
functions    functions, operators and aggregates
terms        values with Spark's types, and casts
"""

from evertide.server.query.translation.translate import translate_query

__all__ = ["translate_query"]
