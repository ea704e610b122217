"""Fetch Avro schemas by number from a schema registry.

    GET /schemas/ids/{id}                           the schema, and its references
    GET /subjects/{subject}/versions/{version}      a schema that another refers to

A schema never changes under its number, so each is fetched once. A number that the registry does not know makes a
record unreadable (`Unreadable`); a registry that does not answer stalls the source (`RegistryAway`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import fastavro

from evertide.sources.kafka.avro_bounds import has_empty_items, is_recursive

__all__ = ["RegistryAway", "SchemaRegistry", "Unreadable"]

_LIMIT_S = 5.0
_ACCEPTED = "application/vnd.schemaregistry.v1+json, application/json"


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
