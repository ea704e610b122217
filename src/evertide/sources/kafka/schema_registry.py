"""Fetch Avro schemas by number from a schema registry.

    GET /schemas/ids/{id}                           the schema, and its references
    GET /subjects/{subject}/versions/{version}      a schema that another refers to

A schema never changes under its number, so each is fetched once. A number that the registry does not know makes a
record unreadable (`Unreadable`); a registry that does not answer stalls the source (`RegistryAway`).

The data of some schemas can take more memory or stack than their bytes justify:

1. An array whose items have no bytes (`null`, a record without fields) may announce billions of them in a few bytes.
   Such a schema is refused: no column of a table has this type.
2. A record that contains itself may be nested as deeply as its bytes allow. fastavro's compiled reader has no limit,
   and ends the process when its stack is full. Data of such a schema are read by fastavro's reader in Python, which is
   slower and bounded by Python's recursion limit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import fastavro

_LIMIT_S = 5.0
_ACCEPTED = "application/vnd.schemaregistry.v1+json, application/json"

Named = Mapping[str, Any]


class Unreadable(Exception):
    """A key or a value cannot be read; the text is the reason."""


class RegistryAway(Exception):
    """The registry does not answer; the text is the reason."""


class SchemaRegistry:
    def __init__(self, url: str, auth: str = "") -> None:
        """`auth` is `user:password`, for basic authentication."""
        self._url = url.rstrip("/")
        self._headers = {"Accept": _ACCEPTED}
        if auth:
            self._headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
        self._known: dict[int, Any] = {}
        self._recursive: set[int] = set()
        self._unbounded: set[int] = set()

    def probe(self) -> None:
        """Raise `RegistryAway` if the registry does not answer."""
        self._fetch("/schemas/types")

    def schema(self, number: int) -> Any:
        """The schema as parsed by fastavro. `Unreadable` if a few bytes could stand for any number of values."""
        if number not in self._known:
            found = self._fetch(f"/schemas/ids/{number}")
            if found is None:
                raise Unreadable(f"the schema registry has no schema {number}")
            kind = found.get("schemaType", "AVRO")
            if kind != "AVRO":
                raise Unreadable(f"schema {number} has the type {kind}; expected AVRO")
            named: dict[str, Any] = {}
            parsed = self._parse(found, named)
            if is_recursive(parsed, named):
                self._recursive.add(number)
            if has_empty_items(parsed, named):
                self._unbounded.add(number)
            self._known[number] = parsed
        if number in self._unbounded:
            raise Unreadable(f"schema {number} has an array whose items have no bytes")
        return self._known[number]

    def is_recursive(self, number: int) -> bool:
        """Whether a record of the schema contains itself, so that its data may be nested without a limit."""
        self.schema(number)
        return number in self._recursive

    def _parse(self, found: Mapping[str, Any], named: dict[str, Any]) -> Any:
        for other in found.get("references") or ():
            path = f"/subjects/{quote(other['subject'], safe='')}/versions/{other['version']}"
            referred = self._fetch(path)
            if referred is None:
                raise Unreadable(f"the schema registry has no version {other['version']} of {other['subject']!r}")
            self._parse(referred, named)
        try:
            return fastavro.parse_schema(_remove_uuid_types(json.loads(found["schema"])), named_schemas=named)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise Unreadable(f"the schema cannot be parsed: {type(error).__name__} {error}") from error

    def _fetch(self, path: str) -> Any:
        """Fetch the JSON at a path; None for 404."""
        request = Request(f"{self._url}{path}", headers=self._headers)  # noqa: S310 - http or https (`is_url`)
        try:
            with urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310 - the same
                return json.loads(answer.read())
        except HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise RegistryAway(f"{self._url} answers {error.code} {error.reason}") from error
        except URLError as error:
            raise RegistryAway(f"{self._url} does not answer: {error.reason}") from error
        except (OSError, ValueError) as error:
            raise RegistryAway(f"{self._url} does not answer as a schema registry: {error}") from error


def is_url(url: str) -> bool:
    """Whether a URL is HTTP or HTTPS without user and password, which have an option of their own."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


def _remove_uuid_types(schema: Any) -> Any:
    """Remove the logical type uuid, as tables store a UUID as text."""
    if isinstance(schema, list):
        return [_remove_uuid_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    is_uuid = schema.get("logicalType") == "uuid"
    return {
        name: _remove_uuid_types(value) for name, value in schema.items() if not (is_uuid and name == "logicalType")
    }


def has_empty_items(schema: Any, named: Named) -> bool:
    """Whether the schema has an array whose items have no bytes."""
    return any(
        one.get("type") == "array" and _is_empty(one["items"], named, ()) for one in _list_schemas(schema, named)
    )


def is_recursive(schema: Any, named: Named, inside: tuple[str, ...] = ()) -> bool:
    """Whether a record contains itself, at any depth."""
    definition = _definition(schema, named)
    name = definition.get("name", "") if isinstance(definition, dict) else ""
    if name in inside:
        return True
    return any(is_recursive(one, named, (*inside, name) if name else inside) for one in _parts(definition))


def _list_schemas(schema: Any, named: Named) -> Iterator[dict[str, Any]]:
    """The schema and all schemas in it, each definition once."""
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        definition = _definition(waiting.pop(), named)
        name = definition.get("name") if isinstance(definition, dict) else None
        if name in seen:
            continue
        if name is not None:
            seen.add(name)
        if isinstance(definition, dict):
            yield definition
        waiting += _parts(definition)


def _is_empty(schema: Any, named: Named, inside: tuple[str, ...]) -> bool:
    definition = _definition(schema, named)
    if definition == "null":
        return True
    if not isinstance(definition, dict):
        return False
    if definition["type"] == "fixed":
        return bool(definition["size"] == 0)
    if definition["type"] not in ("record", "error"):
        return bool(definition["type"] == "null")
    name = definition["name"]
    return name not in inside and all(_is_empty(one["type"], named, (*inside, name)) for one in definition["fields"])


def _definition(schema: Any, named: Named) -> Any:
    """Resolve a name to its definition; return any other schema unchanged."""
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _parts(definition: Any) -> list[Any]:
    if isinstance(definition, list):
        return definition
    if not isinstance(definition, dict):
        return []
    if definition["type"] in ("record", "error"):
        return [one["type"] for one in definition["fields"]]
    if definition["type"] == "array":
        return [definition["items"]]
    if definition["type"] == "map":
        return [definition["values"]]
    return [definition["type"]] if isinstance(definition["type"], dict | list) else []
