"""Parse and validate the parameters of `/v1/shape`, before any lookup; and refuse requests.

1. All errors are reported together, by parameter. Unknown parameters are ignored, as clients and caches add their own.
2. `handle` matters only with an offset to continue from: with `-1` and `now` it serves caches only.
3. A subset request has a `subset__...` parameter, or a JSON object as its body.
4. A refusal is a status code of Electric's protocol, with a reason as JSON: errors in a request are listed by parameter
   under `errors`; every other reason is a `message`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from evertide.errors import EvertideError, InvalidInput, Unavailable
from evertide.pgexpr.restriction import UNRESTRICTED, Restriction
from evertide.shapes.protocol.offsets import BEFORE_ALL, BEFORE_LOG, Offset, parse_offset
from evertide.sources.values.strict_json import RepeatedName, decode_json

_BLANK = "can't be blank"
_SUBSET = "subset__"
_SUBSET_FIELDS = ("where", "params", "limit", "offset", "order_by", "where_expr", "order_by_expr")
_PARAM = re.compile(r"params\[([^\]]*)\]")
_WHOLE = re.compile(r"[0-9]{1,18}")

Errors = dict[str, list[str]]

KNOWN_ERROR = "electric-internal-known-error"
_MUST_REFETCH = b'[{"headers":{"control":"must-refetch"}}]'
_READY_AFTER_S = 5


class Refusal(Exception):
    def __init__(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.headers = dict(headers or {})


def refuse_invalid(errors: Mapping[str, list[str]]) -> Refusal:
    """400 with the errors by parameter."""
    return Refusal(400, {"message": "Invalid request", "errors": dict(errors), "error_code": InvalidInput.error_code})


def refuse_not_ready(why: str) -> Refusal:
    known = {"message": why, "error_code": Unavailable.error_code}
    return Refusal(503, known, {"retry-after": str(_READY_AFTER_S), KNOWN_ERROR: "true"})


def refuse_ended(handle: str) -> Refusal:
    """409: the requested shape has ended. `handle` is the new shape to begin with, if there is one."""
    kept = "public, max-age=60, must-revalidate" if handle else "public, max-age=1, must-revalidate"
    return Refusal(409, _MUST_REFETCH, {"cache-control": kept, **({"electric-handle": handle} if handle else {})})


def refuse_error(error: EvertideError, status: int, restriction: Restriction) -> Refusal:
    """The refusal for an error of the storage or the pipeline."""
    headers = {"retry-after": str(_READY_AFTER_S), KNOWN_ERROR: "true"} if status == 503 else {}
    return Refusal(status, restriction.error_json(error), headers)


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name as in SQL: exact if quoted, otherwise case-insensitive."""

    name: str
    is_quoted: bool = False

    def find_in(self, names: Iterable[str]) -> str | None:
        if self.is_quoted:
            return next((name for name in names if name == self.name), None)
        wanted = self.name.lower()
        return next((name for name in names if name.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class SubsetRequest:
    where: str = ""
    params: tuple[tuple[str, str], ...] = ()
    order_by: str = ""
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    table: tuple[Identifier, ...]
    """With its schema, if given."""
    offset: Offset = BEFORE_ALL
    is_now: bool = False
    handle: str = ""
    is_live: bool = False
    is_sse: bool = False
    cursor: str = ""
    where: str = ""
    params: tuple[tuple[str, str], ...] = ()
    columns: tuple[Identifier, ...] = ()
    queryable: tuple[Identifier, ...] = ()
    is_full: bool = False
    is_changes_only: bool = False
    subset: SubsetRequest | None = field(default=None)
    restriction: Restriction = UNRESTRICTED
    """The restriction of the request's token; no parameter can change it."""

    @property
    def begins(self) -> bool:
        """Whether the request begins a shape: it needs no handle."""
        return self.is_now or self.offset == BEFORE_ALL


def parse_request(query: Mapping[str, str], *, needs_offset: bool = True) -> ShapeRequest:
    errors: Errors = {}
    offset, is_now = _parse_offset(query, errors, needs_offset=needs_offset)
    begins = is_now or offset == BEFORE_ALL
    is_live = _parse_flag(query, "live")
    is_sse = _parse_flag(query, "live_sse") or _parse_flag(query, "experimental_live_sse")
    handle = "" if begins and needs_offset else query.get("handle", "")
    if needs_offset and not begins and not handle and "offset" not in errors:
        errors["handle"] = ["can't be blank when offset != -1"]
    if is_live and begins and "offset" not in errors:
        errors["live"] = [f"can't be true when offset == {'now' if is_now else '-1'}"]
    if is_sse and not is_live:
        errors["live_sse"] = ["can't be true unless live is also true"]
    request = ShapeRequest(
        table=_parse_table(query, errors, is_needed=needs_offset or not handle),
        offset=offset,
        is_now=is_now,
        handle=handle,
        is_live=is_live,
        is_sse=is_sse,
        cursor=query.get("cursor", ""),
        where=query.get("where", ""),
        params=tuple(sorted((hit[1], value) for name, value in query.items() if (hit := _PARAM.fullmatch(name)))),
        columns=_parse_columns(query, "columns", errors),
        queryable=_parse_columns(query, "queryable_columns", errors),
        is_full=_parse_choice(query, "replica", ("default", "full"), errors) == "full",
        is_changes_only=_parse_choice(query, "log", ("full", "changes_only"), errors) == "changes_only",
        subset=_parse_subset_query(query, errors),
    )
    if errors:
        raise refuse_invalid(errors)
    return request


def parse_subset_body(content: bytes) -> SubsetRequest | None:
    """The subset in a POST body; None if the body is empty or has no field of a subset."""
    if not content.strip():
        return None
    try:
        value = decode_json(msgspec.json.Decoder(), content)
    except (RepeatedName, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Refusal(400, {"error": "Invalid JSON in request body", "details": str(error)}) from error
    if not isinstance(value, dict):
        raise Refusal(400, {"error": "Request body must be a JSON object"})
    inner = value.get("subset", value)
    if not isinstance(inner, dict):
        raise refuse_invalid({"subset": ["must be a JSON object"]})
    errors: Errors = {}
    subset = _parse_subset({name: inner[name] for name in _SUBSET_FIELDS if inner.get(name) is not None}, errors)
    if errors:
        raise refuse_invalid({"subset": [f"{name} {message}" for name, all_ in errors.items() for message in all_]})
    return subset


def parse_identifiers(text: str) -> list[Identifier] | None:
    """Parse comma-separated names, quoted or not; None if the text is malformed."""
    names = []
    for quoted in _split(text, ","):
        name = _parse_identifier(quoted.strip())
        if name is None:
            return None
        names.append(name)
    return names


def _parse_identifier(text: str) -> Identifier | None:
    if len(text) > 2 and text[0] == text[-1] == '"':
        inner = text[1:-1]
        return None if '"' in inner.replace('""', "") else Identifier(inner.replace('""', '"'), is_quoted=True)
    return None if not text or '"' in text else Identifier(text)


def _split(text: str, at: str) -> list[str]:
    """Split at a character, except inside quotes."""
    fields, start, is_quoted = [], 0, False
    for place, character in enumerate(text):
        is_quoted ^= character == '"'
        if character == at and not is_quoted:
            fields.append(text[start:place])
            start = place + 1
    return [*fields, text[start:]]


def _parse_table(query: Mapping[str, str], errors: Errors, *, is_needed: bool) -> tuple[Identifier, ...]:
    text = query.get("table", "").strip()
    if not text:
        if is_needed:
            errors["table"] = [_BLANK]
        return ()
    names = [_parse_identifier(quoted.strip()) for quoted in _split(text, ".")]
    if not 1 <= len(names) <= 2 or None in names:
        errors["table"] = ["Invalid zero-length delimited identifier" if '""' in text else "has invalid format"]
        return ()
    return tuple(name for name in names if name is not None)


def _parse_columns(query: Mapping[str, str], name: str, errors: Errors) -> tuple[Identifier, ...]:
    if name not in query:
        return ()
    columns = parse_identifiers(query[name])
    if columns is None:
        errors[name] = ["Invalid zero-length delimited identifier"]
        return ()
    return tuple(columns)


def _parse_offset(query: Mapping[str, str], errors: Errors, *, needs_offset: bool) -> tuple[Offset, bool]:
    text = query.get("offset", "")
    if text == "now":
        return BEFORE_LOG, True
    offset = parse_offset(text)
    if offset is None and needs_offset:
        errors["offset"] = [_BLANK if not text else "has invalid format"]
    return BEFORE_ALL if offset is None else offset, False


def _parse_flag(query: Mapping[str, str], name: str) -> bool:
    return name in query and query[name].lower() != "false"


def _parse_choice(query: Mapping[str, str], name: str, known: tuple[str, ...], errors: Errors) -> str:
    value = query.get(name) or known[0]
    if value not in known:
        errors[name] = [f"is invalid, expected {' or '.join(known)}"]
    return value


def _parse_subset_query(query: Mapping[str, str], errors: Errors) -> SubsetRequest | None:
    fields: dict[str, Any] = {
        name: query[_SUBSET + name] for name in _SUBSET_FIELDS if query.get(_SUBSET + name, "") != ""
    }
    subset_errors: Errors = {}
    if "params" in fields:
        try:
            fields["params"] = decode_json(msgspec.json.Decoder(), fields["params"].encode())
        except (RepeatedName, msgspec.MsgspecError, UnicodeError, RecursionError):
            subset_errors["params"] = ["must be a JSON object"]
            fields["params"] = {}
    subset = _parse_subset(fields, subset_errors)
    errors.update({_SUBSET + name: messages for name, messages in subset_errors.items()})
    return subset


def _parse_subset(fields: Mapping[str, Any], errors: Errors) -> SubsetRequest | None:
    if not fields:
        return None
    texts = {name: fields.get(name, "") for name in ("where", "order_by")}
    for name, value in texts.items():
        if not isinstance(value, str):
            errors[name] = ["must be a text"]
    params = fields.get("params", {})
    if isinstance(params, list):
        params = {str(at): value for at, value in enumerate(params, 1)}
    if not isinstance(params, dict) or any(isinstance(value, dict | list) for value in params.values()):
        errors["params"] = ["must be a JSON object"]
        params = {}
    limit = _parse_number(fields, "limit", 1, errors)
    offset = _parse_number(fields, "offset", 0, errors)
    if (limit is not None or offset is not None) and not texts["order_by"]:
        errors["order_by"] = ["order_by is required when limit or offset is present"]
    if errors:
        return None
    named = tuple(sorted((str(name), _param(value)) for name, value in params.items()))
    return SubsetRequest(texts["where"], named, texts["order_by"], limit, offset or 0)


def _param(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parse_number(fields: Mapping[str, Any], name: str, least: int, errors: Errors) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    text = str(value)
    if isinstance(value, bool) or not _WHOLE.fullmatch(text) or int(text) < least:
        errors[name] = [f"must be a whole number of at least {least}"]
        return None
    return int(text)
