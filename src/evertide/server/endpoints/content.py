"""The rows and columns of a collection that a request selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import Where, conjoin_both, parse_where
from evertide.pipeline.reading.collections import View
from evertide.pipeline.reading.content import CollectionContent
from evertide.shard.shard import Shard


def select_content(
    view: View,
    shard: Shard,
    *,
    columns: Sequence[str] = (),
    where: str = "",
    params: Mapping[str, str] | None = None,
    allowed: Where | None = None,
) -> CollectionContent:
    """`allowed` has the rows that the token may see."""
    declared = {name.lower(): name for name in shard.schema.names}
    missing = [name for name in columns if name.lower() not in declared]
    if missing:
        why = f"collection {view.name!r} has no column {missing[0]!r}; it has {', '.join(shard.schema.names)}"
        raise InvalidInput(where="parameter 'columns'", why=why)
    names = tuple(dict.fromkeys(declared[name.lower()] for name in columns)) or tuple(shard.schema.names)
    if params and not where.strip():
        raise InvalidInput(where="parameter 'params'", why="params need the parameter 'where'")
    clause = parse_where(where, params or {}, shard.schema) if where.strip() else None
    return CollectionContent(shard, view.name, view.time, names, conjoin_both(allowed, clause))
