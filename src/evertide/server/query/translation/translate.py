"""`translate_query`: rewrites a query so that DuckDB returns the answer that Spark would, or refuses it.

The language is Spark's, and DuckDB differs from it in places. The number of rows decides which engine answers, so a
query must have the same answer in both:

1. Both parsers must read the text alike (`evertide.server.query.translation.wording`).
2. DuckDB's tree of the query is read node by node, by Spark's rules for names, scopes and types, and written as new SQL
   (`queries`, `relations`, `expressions`, `functions`, `terms`). Those modules list each node, function and pair of
   types that is known to agree. A query that uses anything else is left to Spark.
3. The columns of the answer have Spark's names and types. An unnamed column that is more than a column or one aggregate
   of a column is left to Spark.
4. Where the engines agree for nearly all rows, the query fails in DuckDB for the other rows, and is left to Spark.

Two differences are accepted: which of the rows that the order does not distinguish LIMIT returns; and errors in values
that the answer does not need. DuckDB rewrites `-i = 1` to `i = -1`, and so does not notice that `-i` overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from evertide.pipeline.reading.query import Question
from evertide.server.query.duck import DuckDeclined
from evertide.server.query.translation.expressions import ExpressionTranslator
from evertide.server.query.translation.queries import QueryTranslator
from evertide.server.query.translation.terms import make_refusal
from evertide.server.query.translation.wording import check_wording

__all__ = ["translate_query"]

_UTC = frozenset(("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00"))


def translate_query(
    question: Question, tree: Mapping[str, Any], schemas: Mapping[str, pa.Schema], zone: str = ""
) -> Question:
    """The query for DuckDB, without parameters; `DuckDeclined` if DuckDB is not known to agree with Spark.

    `tree` is DuckDB's tree of the statement, `schemas` has the collections that it reads, `zone` is the time zone of
    the session, if known."""
    check_wording(question.sql)
    if question.sql.count("?") < len(question.parameters):
        raise make_refusal("more parameters than question marks")
    try:
        translated = QueryTranslator(
            schemas, ExpressionTranslator(question.parameters, is_utc=zone in _UTC)
        ).translate_query(tree["node"])
    except DuckDeclined:
        raise
    except (LookupError, TypeError, ValueError, RecursionError) as error:  # too few arguments, or nested too deeply
        raise make_refusal(f"the query ({type(error).__name__})") from error
    return replace(question, sql=translated, parameters=())
