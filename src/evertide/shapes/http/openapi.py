"""The OpenAPI description of `/v1/shape`, a part of the document of all endpoints (`evertide.server.http.openapi`).

Electric's protocol does not use our own structures, so the description is written by hand. `requests` parses the
protocol; `tests/shapes/test_described.py` checks that the two agree.
"""

from __future__ import annotations

from typing import Any

__all__ = ["shape_paths"]

_OFFSET = r"^(-1|now|[0-9]{1,19}_([0-9]{1,19}|inf))$"
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_TEXT: dict[str, Any] = {"type": "string"}

_DEFINITION: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("table", _TEXT, "A table or a view; `public.` may stand before it, and in quotes the case counts."),
    ("where", _TEXT, "Which rows: an expression of PostgreSQL over one of them."),
    ("params[1]", _TEXT, "What `$1` in the clause stands for; `params[2]` for `$2`, and so on."),
    ("columns", _TEXT, "Which columns, with commas between them; those of the key must be among them."),
    ("queryable_columns", _TEXT, "The columns that subsets may be chosen and ordered by."),
    ("replica", {"type": "string", "enum": ["default", "full"]}, "`full`: updates and deletes tell the whole row."),
    ("log", {"type": "string", "enum": ["full", "changes_only"]}, "`changes_only`: without a snapshot."),
)
_PLACE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("offset", {"type": "string", "pattern": _OFFSET}, "`-1` begins, `now` begins at the end of the log."),
    ("handle", _TEXT, "What `electric-handle` said; needed unless `offset` begins."),
    ("live", {"type": "string", "enum": ["true", "false"]}, "Whether to wait for what is new."),
    ("live_sse", {"type": "string", "enum": ["true", "false"]}, "With `live`: as a stream of events."),
    ("cursor", _TEXT, "What `electric-cursor` said: tells requests that wait apart for caches in between."),
)
_SUBSET: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("subset__where", _TEXT, "Some rows as they are now: which."),
    ("subset__params", _TEXT, "Its parameters, as a JSON object."),
    ("subset__order_by", _TEXT, "In which order: columns with ASC or DESC."),
    ("subset__limit", {"type": "integer", "minimum": 1}, "How many at most; needs an order."),
    ("subset__offset", _WHOLE, "How many to leave out; needs an order."),
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
    "400": "The request is wrong; `errors` says what, by parameter.",
    "401": "A token is needed, and this is none.",
    "403": "The token is not for this collection.",
    "409": "The shape is over: begin again, with the handle in `electric-handle`.",
    "413": "The body is too large.",
    "503": "Not now; `retry-after` says when.",
}


def shape_paths() -> dict[str, Any]:
    """The paths of an OpenAPI document. The result is constant."""
    rows: dict[str, Any] = {"oneOf": [_MESSAGES, _ROWS]}
    read = {"200": _answer("Messages; for a subset, rows.", rows), "304": {"description": "Known already."}}
    ended = {"202": {"description": "It ends."}, "404": _answer("There is none.", _REASON)}
    get = _operation("get_shape", "Rows, then changes.", [*_DEFINITION, *_PLACE, *_SUBSET], read)
    post = _operation("post_shape", "Some rows as they are now.", [*_DEFINITION, *_PLACE], read)
    post["requestBody"] = {"content": {"application/json": {"schema": _BODY}}}
    delete = _operation("delete_shape", "End a shape, if that is allowed.", [*_DEFINITION, *_PLACE[1:2]], ended)
    delete["responses"]["405"] = _answer("It is not allowed.", _REASON)
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
