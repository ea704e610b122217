"""Detect Avro schemas whose data can take more memory or stack than their bytes justify.

1. An array whose items have no bytes (`null`, a record without fields) may announce billions of them in a few bytes.
   Such a schema is refused: no column of a table has this type.
2. A record that contains itself may be nested as deeply as its bytes allow. fastavro's compiled reader has no limit,
   and ends the process when its stack is full. Data of such a schema are read by fastavro's reader in Python, which is
   slower and bounded by Python's recursion limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["has_empty_items", "is_recursive"]

Named = Mapping[str, Any]


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
