"""The rows and columns of a collection that a request selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import Where, conjoin_both, parse_where
from evertide.pipeline.reading.content import CollectionContent
from evertide.shard.shard import Shard


def select_content(
    name: str,
    shard: Shard,
    time: int,
    *,
    columns: Sequence[str] = (),
    where: str = "",
    params: Mapping[str, str] | None = None,
    allowed: Where | None = None,
) -> CollectionContent:
    """`allowed` has the rows that the token may see."""
    declared = {name.lower(): name for name in shard.schema.names}
    missing = [column for column in columns if column.lower() not in declared]
    if missing:
        why = f"collection {name!r} has no column {missing[0]!r}; it has {', '.join(shard.schema.names)}"
        raise InvalidInput(where="parameter 'columns'", why=why)
    names = tuple(dict.fromkeys(declared[column.lower()] for column in columns)) or tuple(shard.schema.names)
    if params and not where.strip():
        raise InvalidInput(where="parameter 'params'", why="params need the parameter 'where'")
    clause = parse_where(where, params or {}, shard.schema) if where.strip() else None
    return CollectionContent(shard, name, time, names, conjoin_both(allowed, clause))
