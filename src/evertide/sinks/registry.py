"""The connectors that write, and the sinks of a script's collections.

A connector is one entry of `CONNECTORS`: a function that reads the options of a declaration and returns how to open it
(`evertide.sinks.contract`). Its module is imported when a sink uses it, as its packages may not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from evertide.errors import InvalidInput
from evertide.extras import import_extra
from evertide.rows.changes import DIFF
from evertide.sinks.contract import Prepared, SinkDeclaration
from evertide.suggestions import suggest

CONNECTORS: Mapping[str, str] = MappingProxyType(
    {
        "delta": "evertide.sinks.delta:prepare_delta",
        "files": "evertide.sinks.files:prepare_files",
        "kafka": "evertide.sinks.kafka.sink:prepare_kafka",
        "postgres": "evertide.sinks.postgres.sink:prepare_postgres",
        "webhook": "evertide.sinks.webhook:prepare_webhook",
    }
)
"""The module and function of each connector: `Callable[[SinkDeclaration], Prepared]`."""


def prepare_sinks(declarations: Sequence[SinkDeclaration]) -> dict[str, Prepared]:
    """Prepare the sinks, by name. `InvalidInput` has the script and line."""
    found: dict[str, Prepared] = {}
    for declaration in declarations:
        where = f"{declaration.where}, sink {declaration.name!r} of {declaration.collection!r}"
        if declaration.name in found:
            first = next(one for one in declarations if one.name == declaration.name)
            why = f"{first.collection!r} already has a sink of that name; use another name"
            raise InvalidInput(where=where, why=why)
        found[declaration.name] = _prepare(_resolve_key(declaration, where), where)
    return found


def _prepare(declaration: SinkDeclaration, where: str) -> Prepared:
    if declaration.connector not in CONNECTORS:
        hint = suggest(declaration.connector, CONNECTORS) or f"; the connectors are {', '.join(sorted(CONNECTORS))}"
        why = f"there is no connector {declaration.connector!r} for a sink{hint}"
        raise InvalidInput(where=where, why=why)
    if DIFF in declaration.schema.names:
        raise InvalidInput(where=where, why=f"a column cannot be named {DIFF!r}: Evertide uses that name")
    module, _, function = CONNECTORS[declaration.connector].partition(":")
    prepare: Callable[[SinkDeclaration], Prepared] = getattr(
        import_extra(module, declaration.connector, where), function
    )
    return prepare(declaration)


def _resolve_key(declaration: SinkDeclaration, where: str) -> SinkDeclaration:
    """Resolve the option `key` to columns of the collection."""
    options = {name.lower(): value for name, value in declaration.options.items()}
    named = options.pop("key", None)
    if named is None:
        return replace(declaration, options=options)
    spelled = {column.lower(): column for column in declaration.schema.names}
    asked = [column.strip() for column in named.split(",")]
    unknown = [column for column in asked if column.lower() not in spelled]
    if unknown or len({column.lower() for column in asked}) < len(asked):
        listed = ", ".join(map(repr, declaration.schema.names))
        why = f"the option 'key' is {named!r}: expected columns of {listed}, each once, separated by commas"
        raise InvalidInput(where=where, why=why)
    return replace(declaration, options=options, key=tuple(spelled[column.lower()] for column in asked))
