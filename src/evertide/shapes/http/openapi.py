"""The OpenAPI description of `/v1/shape`, a part of the document of all endpoints (`evertide.server.http.openapi`).

Electric's protocol does not use our own structures, so the description is written by hand. `requests` parses the
protocol; `tests/shapes/test_shape_openapi.py` checks that the two agree.
"""

from __future__ import annotations

from typing import Any

_OFFSET = r"^(-1|now|[0-9]{1,19}_([0-9]{1,19}|inf))$"
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_TEXT: dict[str, Any] = {"type": "string"}

_DEFINITION: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("table", _TEXT, "A table or view, optionally with `public.` before it; quoted names are case-sensitive."),
    ("where", _TEXT, "Condition for rows: a PostgreSQL expression over one row."),
    ("params[1]", _TEXT, "Value of `$1` in the clause; `params[2]` is that of `$2`, and so on."),
    ("columns", _TEXT, "Comma-separated columns; must include the key."),
    ("queryable_columns", _TEXT, "Columns that subsets may filter and sort by."),
    ("replica", {"type": "string", "enum": ["default", "full"]}, "`full`: updates and deletes contain the whole row."),
    ("log", {"type": "string", "enum": ["full", "changes_only"]}, "`changes_only`: without a snapshot."),
)
_PLACE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("offset", {"type": "string", "pattern": _OFFSET}, "`-1` starts with the snapshot, `now` at the end of the log."),
    ("handle", _TEXT, "The last `electric-handle`; required unless `offset` is `-1` or `now`."),
    ("live", {"type": "string", "enum": ["true", "false"]}, "Whether to wait for changes."),
    ("live_sse", {"type": "string", "enum": ["true", "false"]}, "With `live`: as a stream of events."),
    ("cursor", _TEXT, "The last `electric-cursor`, so that caches distinguish requests that wait."),
)
_SUBSET: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("subset__where", _TEXT, "Condition for the rows of a subset."),
    ("subset__params", _TEXT, "Parameters of that condition, as a JSON object."),
    ("subset__order_by", _TEXT, "Order: columns with ASC or DESC."),
    ("subset__limit", {"type": "integer", "minimum": 1}, "At most this many rows; needs an order."),
    ("subset__offset", _WHOLE, "Skip this many rows; needs an order."),
)
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "where": _TEXT,
        "params": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
        "order_by": _TEXT,
        "limit": {"type": "integer", "minimum": 1},
        "offset": _WHOLE,
    },
}
_MESSAGES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["headers"],
        "properties": {"key": _TEXT, "value": {"type": "object"}, "headers": {"type": "object"}},
    },
}
_ROWS: dict[str, Any] = {
    "type": "object",
    "required": ["metadata", "data"],
    "properties": {"metadata": {"type": "object"}, "data": _MESSAGES},
}
_REASON: dict[str, Any] = {
    "type": "object",
    "properties": {"message": _TEXT, "errors": {"type": "object"}, "error_code": _TEXT},
}
_REFUSED = {
    "400": "The request is invalid; `errors` lists the reasons by parameter.",
    "401": "The request has no valid token.",
    "403": "The token does not allow this collection.",
    "409": "The shape has ended; start again with the handle in `electric-handle`.",
    "413": "The body is too large.",
    "503": "Temporarily unavailable; retry after `retry-after` seconds.",
}


def describe_shape_paths() -> dict[str, Any]:
    """The paths of an OpenAPI document. The result is constant."""
    rows: dict[str, Any] = {"oneOf": [_MESSAGES, _ROWS]}
    read = {"200": _answer("Messages; for a subset, rows.", rows), "304": {"description": "Not modified."}}
    ended = {"202": {"description": "The shape ends."}, "404": _answer("The shape does not exist.", _REASON)}
    get = _operation("get_shape", "Rows, then changes.", [*_DEFINITION, *_PLACE, *_SUBSET], read)
    post = _operation("post_shape", "A subset of the rows at the current time.", [*_DEFINITION, *_PLACE], read)
    post["requestBody"] = {"content": {"application/json": {"schema": _BODY}}}
    delete = _operation("delete_shape", "End a shape, if the server allows it.", [*_DEFINITION, *_PLACE[1:2]], ended)
    delete["responses"]["405"] = _answer("The server does not allow it.", _REASON)
    return {"/v1/shape": {"get": get, "post": post, "delete": delete}}


def _operation(name: str, summary: str, parameters: Any, answers: dict[str, Any]) -> dict[str, Any]:
    needed = ("table", "offset") if name != "delete_shape" else ()
    return {
        "operationId": name,
        "tags": ["shapes"],
        "summary": summary,
        "parameters": [
            {"name": one, "in": "query", "required": one in needed, "schema": schema, "description": text}
            for one, schema, text in parameters
        ],
        "responses": {**answers, **{status: _answer(text, _REASON) for status, text in _REFUSED.items()}},
    }


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
