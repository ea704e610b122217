"""Which connectors write, and the sinks that a script's collections ask for.

A connector is one entry here: a function that reads the options of a declaration and says how to open it
(`evertide.sinks.contract`). It is imported when a sink asks for it, as what it needs may not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType

from evertide.errors import InvalidInput
from evertide.rows.changes import DIFF
from evertide.sinks.contract import Prepared, SinkDeclaration

__all__ = ["CONNECTORS", "prepare_sinks"]

CONNECTORS: Mapping[str, str] = MappingProxyType(
    {
        "delta": "evertide.sinks.delta:prepare_delta",
        "files": "evertide.sinks.files:prepare_files",
        "kafka": "evertide.sinks.kafka.sink:prepare_kafka",
        "postgres": "evertide.sinks.postgres.sink:prepare_postgres",
        "webhook": "evertide.sinks.webhook:prepare_webhook",
    }
)
"""By name, the module and the function: `Callable[[SinkDeclaration], Prepared]`."""


def prepare_sinks(declarations: Sequence[SinkDeclaration]) -> dict[str, Prepared]:
    """By the name of the sink. `InvalidInput` names script and line."""
    found: dict[str, Prepared] = {}
    for declaration in declarations:
        where = f"{declaration.where}, sink {declaration.name!r} of {declaration.collection!r}"
        if declaration.name in found:
            first = next(one for one in declarations if one.name == declaration.name)
            why = f"{first.collection!r} has a sink of that name already: give this one another"
            raise InvalidInput(where=where, why=why)
        found[declaration.name] = _prepare(_keyed(declaration, where), where)
    return found


def _prepare(declaration: SinkDeclaration, where: str) -> Prepared:
    if declaration.connector not in CONNECTORS:
        listed = ", ".join(sorted(CONNECTORS))
        raise InvalidInput(
            where=where, why=f"{declaration.connector!r} is no connector that writes; there are {listed}"
        )
    if DIFF in declaration.schema.names:
        raise InvalidInput(where=where, why=f"a column cannot be named {DIFF!r}: Evertide has one of that name itself")
    module, _, function = CONNECTORS[declaration.connector].partition(":")
    try:
        prepare: Callable[[SinkDeclaration], Prepared] = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        why = f"it needs the package {error.name!r}: pip install 'evertide[{declaration.connector}]'"
        raise InvalidInput(where=where, why=why) from error
    return prepare(declaration)


def _keyed(declaration: SinkDeclaration, where: str) -> SinkDeclaration:
    """With the key that the option `key` names, spelled as the collection spells it."""
    options = {name.lower(): value for name, value in declaration.options.items()}
    named = options.pop("key", None)
    if named is None:
        return replace(declaration, options=options)
    spelled = {column.lower(): column for column in declaration.schema.names}
    asked = [column.strip() for column in named.split(",")]
    unknown = [column for column in asked if column.lower() not in spelled]
    if unknown or len({column.lower() for column in asked}) < len(asked):
        why = f"the option 'key' is {named!r}: expected some of {', '.join(map(repr, declaration.schema.names))}"
        raise InvalidInput(where=where, why=f"{why}, each once, with commas between them")
    return replace(declaration, options=options, key=tuple(spelled[column.lower()] for column in asked))
