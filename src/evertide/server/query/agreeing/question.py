"""`agreed`: a question in words by which DuckDB computes what Spark would answer, or a refusal.

The language is Spark's, and DuckDB's means something else in places. Which engine answers depends on how many rows
there are, so a query that both may answer must have one answer. It is made so:

1. The text must be one that both parsers read alike (`evertide.server.query.agreeing.wording`).
2. DuckDB's tree of it is read node by node, with Spark's rules for names, scopes and types, and written anew
   (`queries`, `relations`, `expressions`, `functions`, `terms`). Each node, function and pair of types that is known to
   agree is listed there; what is not listed cannot be written, and so goes to Spark.
3. Columns of the answer have the names and the types that Spark gives them. A column that nobody named, and that is
   more than a column or one aggregate of it, is left to Spark.
4. What agrees for nearly all rows fails in DuckDB for the rest, and goes to Spark then.

Not the same, and not meant to be: which rows LIMIT takes of those that its order does not tell apart; and errors in
what the answer does not need. DuckDB asks `i = -1` for `-i = 1`, and so does not see that `-i` overflows in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from evertide.pipeline.reading.query import Question
from evertide.server.query.agreeing.expressions import Expressions
from evertide.server.query.agreeing.queries import Queries
from evertide.server.query.agreeing.terms import differs
from evertide.server.query.agreeing.wording import check_wording
from evertide.server.query.duck import NotUnderstood

__all__ = ["agreed"]

_UTC = frozenset(("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00"))


def agreed(question: Question, tree: Mapping[str, Any], schemas: Mapping[str, pa.Schema], zone: str = "") -> Question:
    """What to ask DuckDB instead, with no parameters; `NotUnderstood` if none but Spark is known to answer it as meant.

    `tree` is the statement as DuckDB tells it; `schemas` are those of the collections that it reads; `zone` is where
    both engines count hours, if that is known."""
    check_wording(question.sql)
    if question.sql.count("?") < len(question.parameters):
        raise differs("a parameter that nothing stands for")
    try:
        said = Queries(schemas, Expressions(question.parameters, is_utc=zone in _UTC)).whole(tree["node"])
    except NotUnderstood:
        raise
    except (LookupError, TypeError, ValueError, RecursionError) as error:  # too few arguments, or too deep
        raise differs(f"the query ({type(error).__name__})") from error
    return replace(question, sql=said, parameters=())
