"""Answer a subset request: some of a shape's rows as they are now, in an order, without the log.

A client that follows only changes requests the rows that it needs. The answer contains the transaction at which it was
read, as a PostgreSQL snapshot over the `txids` of the log, so that the client can tell which log entries it already
has. Rows are rendered while the client reads them, and repeated as often as they occur: only the columns are in memory.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response, StreamingResponse

from evertide.media import STALE_HEADER
from evertide.pgexpr.tokens import shorten
from evertide.pipeline.reading.stale import make_stale_header
from evertide.rows.changes import DIFF
from evertide.shapes.http.answers import take_first_blocks, write_array
from evertide.shapes.log.live_shape import LiveShape
from evertide.shapes.log.registry import Shapes
from evertide.shapes.log.shape_definition import ShapeDefinition, parse_where_parameter
from evertide.shapes.log.snapshot import write_snapshot
from evertide.shapes.protocol.requests import ShapeRequest, SubsetRequest, parse_identifiers, refuse_invalid

_ORDER = re.compile(r'\s*("(?:[^"]|"")+"|[^\s",]+)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*', re.IGNORECASE)
_MARKS = 1 << 31


def answer_subset(shapes: Shapes, shape: LiveShape, shape_request: ShapeRequest, subset: SubsetRequest) -> Response:
    definition = shape.definition
    selection = _Selection(definition, shape_request, subset)
    shapes.catch_up(shape)
    last = shapes.find_last_offset(shape)
    time = shapes.upper_known(shape) - 1
    content = selection.apply(
        shapes.contents.read_rows(shapes.shard(definition.subject), definition, time, selection.columns)
    )
    mark = int(shapes.runtime.random() * _MARKS)
    messages = write_snapshot(shape.writer, content, has_key=bool(definition.subject.key), mark=mark)
    metadata = {**shapes.numbers.find_visible(time).json_fields, "snapshot_mark": mark, "database_lsn": str(time + 1)}
    if pushed := shapes.numbers.list_push_numbers(time):
        metadata["txids"] = pushed  # clients copy the metadata to the headers of a `snapshot-end` of their own
    head = b'{"metadata":' + msgspec.json.encode(metadata) + b',"data":'
    headers = {
        "electric-handle": shape.handle,
        "electric-offset": str(last),
        "electric-schema": definition.schema_header,
        "electric-snapshot": "true",
        "electric-has-data": "true" if content.num_rows else "false",
        "cache-control": "no-cache",
    }
    if stale := shapes.find_stale(shape):
        headers[STALE_HEADER] = make_stale_header([stale])
    # Rendered lazily, in a thread: the copies of a row may need more memory than there is.
    blocks = chain([head], write_array(messages), [b"}"])
    first, is_all = take_first_blocks(blocks)
    if is_all:
        return Response(b"".join(first), 200, headers, media_type="application/json")
    return StreamingResponse(chain(first, blocks), 200, headers, media_type="application/json")


class _Selection:
    def __init__(self, definition: ShapeDefinition, shape_request: ShapeRequest, subset: SubsetRequest) -> None:
        names = definition.subject.schema.names
        self._where = parse_where_parameter(definition.subject.schema, subset.where, subset.params, "subset__where")
        self._order = _parse_order(names, subset.order_by)
        self._subset = subset
        self.columns = {*(self._where.columns if self._where is not None else ()), *(one[0] for one in self._order)}
        allowed = {name for one in shape_request.queryable if (name := one.find_in(names)) is not None}
        if allowed and not self.columns <= allowed:
            listed = ", ".join(sorted(self.columns - allowed))
            raise refuse_invalid({"subset__where": [f"not in queryable_columns: {listed}"]})

    def apply(self, content: pa.Table) -> pa.Table:
        if self._where is not None:
            content = content.filter(self._where.matches(content.drop_columns([DIFF])))
        if self._order:
            content = content.take(_sort_indices(content, self._order))
        if self._subset.limit is None and not self._subset.offset:
            return content
        return _limit_rows(content, self._subset.offset, self._subset.limit)


def _limit_rows(content: pa.Table, offset: int, limit: int | None) -> pa.Table:
    """Apply offset and limit, counting every copy of a row."""
    counts = np.asarray(content.column(DIFF))
    ends = np.cumsum(counts)
    upper = int(ends[-1]) if len(ends) else 0
    upper = min(upper, offset + limit) if limit is not None else upper
    left = np.minimum(ends, upper) - np.maximum(ends - counts, offset)
    counted = content.set_column(content.num_columns - 1, content.schema.field(DIFF), pa.array(np.maximum(left, 0)))
    return counted.filter(pa.array(left > 0))


def _sort_indices(content: pa.Table, order: list[tuple[str, bool, bool]]) -> pa.Array:
    """The order of the rows; ties keep the order of the content."""
    keys: list[Any] = []
    ascending: list[bool] = []
    for name, is_descending, nulls_first in order:
        column = content.column(name).combine_chunks()
        keys.append(column.is_null())
        ascending.append(not nulls_first)
        if pa.types.is_floating(column.type):  # NaN is the greatest; Arrow sorts it last in any order
            keys.append(pc.is_nan(column))
            ascending.append(not is_descending)
        keys.append(column)
        ascending.append(not is_descending)
    keys.append(pa.array(np.arange(content.num_rows)))
    ascending.append(True)
    names = [str(at) for at in range(len(keys))]
    try:
        return pc.sort_indices(
            pa.Table.from_arrays(keys, names=names),
            sort_keys=[(name, "ascending" if up else "descending") for name, up in zip(names, ascending, strict=True)],
        )
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        listed = ", ".join(name for name, _, _ in order)
        raise refuse_invalid({"subset__order_by": [f"cannot sort by {listed}: {error}"]}) from error


def _parse_order(names: list[str], text: str) -> list[tuple[str, bool, bool]]:
    """(name, is descending, NULL first) per column, with PostgreSQL's defaults.

    The first mention of a column counts.
    """
    if not text.strip():
        return []
    order: dict[str, tuple[str, bool, bool]] = {}
    at = 0
    while True:
        hit = _ORDER.match(text, at)
        if hit is None or (hit.end() < len(text) and text[hit.end()] != ","):
            raise refuse_invalid({"subset__order_by": [f"expected columns with ASC or DESC, not {shorten(text)}"]})
        one = parse_identifiers(hit[1])
        name = one[0].find_in(names) if one else None
        if name is None:
            raise refuse_invalid({"subset__order_by": [f"the collection has no column {shorten(hit[1])}"]})
        is_descending = (hit[2] or "").lower() == "desc"
        nulls_first = hit[3].lower() == "first" if hit[3] else is_descending
        order.setdefault(name, (name, is_descending, nulls_first))
        if hit.end() == len(text):
            return [*order.values()]
        at = hit.end() + 1
