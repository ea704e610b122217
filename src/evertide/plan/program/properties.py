"""Checks the TBLPROPERTIES of Evertide: unknown names and values are refused.

    evertide.keep                   of a table: 'all' (stored in a shard), or 'none' (only views over it are stored)
    evertide.refresh                of a view: 'incremental', as all views are
    evertide.key                    of a view: columns of which no two rows share the values, 'customer, day'
    evertide.sinks                  of a kept table or materialized view: the names of its sinks, 'lake, hook'
    evertide.sink.<name>.connector  the connector of that sink
    evertide.sink.<name>.<option>   an option of the connector, which checks it (`evertide.sinks`)

Properties with other names belong to the user, and are stored unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evertide.errors import InvalidInput
from evertide.suggestions import suggest

_OURS = "evertide."
_TABLE = {"evertide.keep": ("all", "none")}
_VIEW = {"evertide.refresh": ("incremental",)}
_KEY = "evertide.key"
_SINKS = "evertide.sinks"
_SINK = "evertide.sink."
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class SinkProperties:
    """A sink as the properties of a collection declare it."""

    name: str
    connector: str
    options: Mapping[str, str]
    where: str
    """Its position in the script, for messages."""


def check_properties(properties: Mapping[str, str], *, is_view: bool, where: str) -> None:
    known = _VIEW if is_view else _TABLE
    for name, value in properties.items():
        if not name.startswith(_OURS) or name == _SINKS or name.startswith(_SINK):
            continue
        if name == _KEY and is_view:
            continue
        if name not in known:
            listed = [*sorted([*known, _KEY] if is_view else known), _SINKS, f"{_SINK}<name>.<option>"]
            hint = suggest(name, listed) or f"; the properties are {', '.join(listed)}"
            raise InvalidInput(where=where, why=f"the property {name!r} does not exist{hint}")
        if value not in known[name]:
            values = " or ".join(map(repr, known[name]))
            raise InvalidInput(where=where, why=f"{name!r} is {value!r}, but must be {values}")
    if read_sinks(properties, where) and not is_view and properties.get("evertide.keep") == "none":
        raise InvalidInput(
            where=where,
            why=f"a table with 'evertide.keep' = 'none' cannot have sinks; set {_SINKS!r} on a view over it",
        )


def read_key(properties: Mapping[str, str], columns: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of the declared key, as the view spells them; empty if there is none."""
    if _KEY not in properties:
        return ()
    spelled = {column.lower(): column for column in columns}
    names = [name.strip().lower() for name in properties[_KEY].split(",")]
    wrong = [name for name in names if name not in spelled or names.count(name) > 1]
    if wrong:
        why = f"{_KEY!r} is {properties[_KEY]!r}, but must list columns of the view, each once, separated by commas"
        raise InvalidInput(where=where, why=f"{why}; the view has {', '.join(columns)}")
    return tuple(spelled[name] for name in names)


def read_sinks(properties: Mapping[str, str], where: str) -> tuple[SinkProperties, ...]:
    """The declared sinks, in the order of `evertide.sinks`. Connectors check their own options."""
    names = [name.strip() for name in properties.get(_SINKS, "").split(",")] if _SINKS in properties else []
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            why = f"{_SINKS!r} is {properties[_SINKS]!r}, but must list names of letters, digits and '_', each once"
            raise InvalidInput(where=where, why=f"{why}, separated by commas")
    options: dict[str, dict[str, str]] = {name: {} for name in names}
    for name, value in properties.items():
        if name.startswith(_SINK):
            sink, _, option = name.removeprefix(_SINK).partition(".")
            if sink not in options or not option:
                listed = ", ".join(map(repr, names)) or "none"
                why = f"the property {name!r} is for a sink that {_SINKS!r} does not list; the list has {listed}"
                raise InvalidInput(where=where, why=why)
            options[sink][option.lower()] = value
    return tuple(_make_sink(name, options[name], where) for name in names)


def _make_sink(name: str, options: dict[str, str], where: str) -> SinkProperties:
    if "connector" not in options:
        raise InvalidInput(where=where, why=f"sink {name!r} has no connector; set '{_SINK}{name}.connector'")
    connector = options.pop("connector").lower()
    return SinkProperties(name, connector, options, where.rpartition(", ")[0] or where)
