"""TBLPROPERTIES that Evertide knows: a name that is misspelt, or a value that means nothing, is refused.

    evertide.keep                   of a table: 'all' (it has a shard), or 'none' (only views over it are stored)
    evertide.refresh                of a view: 'incremental', which is what all views are
    evertide.key                    of a view: columns of which no two rows share the values, 'customer, day'
    evertide.sinks                  of a kept table or materialized view: the names of its sinks, 'lake, hook'
    evertide.sink.<name>.connector  what writes that sink
    evertide.sink.<name>.<option>   an option of that connector, which checks it (`evertide.sinks`)

Properties of other names are the user's own, and are kept as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evertide.errors import InvalidInput

__all__ = ["SinkProperties", "check_properties", "key_property", "sink_properties"]

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
    """Script and line: for messages."""


def check_properties(properties: Mapping[str, str], *, is_view: bool, where: str) -> None:
    known = _VIEW if is_view else _TABLE
    for name, value in properties.items():
        if not name.startswith(_OURS) or name == _SINKS or name.startswith(_SINK):
            continue
        if name == _KEY and is_view:
            continue
        if name not in known:
            listed = [*sorted([*known, _KEY] if is_view else known), _SINKS, f"{_SINK}<name>.<option>"]
            raise InvalidInput(where=where, why=f"there is no property {name!r}; known are {listed}")
        if value not in known[name]:
            values = " or ".join(map(repr, known[name]))
            raise InvalidInput(where=where, why=f"{name!r} is {value!r}, but can be {values} only")
    if sink_properties(properties, where) and not is_view and properties.get("evertide.keep") == "none":
        raise InvalidInput(
            where=where, why=f"{_SINKS!r}: a table that is not kept cannot have sinks, a view over it can"
        )


def key_property(properties: Mapping[str, str], columns: Sequence[str], where: str) -> tuple[str, ...]:
    """The key that is declared, as the columns are spelled; empty if there is none."""
    if _KEY not in properties:
        return ()
    spelled = {column.lower(): column for column in columns}
    names = [name.strip().lower() for name in properties[_KEY].split(",")]
    wrong = [name for name in names if name not in spelled or names.count(name) > 1]
    if wrong:
        why = f"{_KEY!r} is {properties[_KEY]!r}: expected columns of the view, each once, with commas between them"
        raise InvalidInput(where=where, why=f"{why}; it has {', '.join(columns)}")
    return tuple(spelled[name] for name in names)


def sink_properties(properties: Mapping[str, str], where: str) -> tuple[SinkProperties, ...]:
    """In the order of their names in `evertide.sinks`. What connectors and options there are is known elsewhere."""
    names = [name.strip() for name in properties.get(_SINKS, "").split(",")] if _SINKS in properties else []
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            why = f"{_SINKS!r} is {properties[_SINKS]!r}: expected names of letters, digits and '_', each once"
            raise InvalidInput(where=where, why=f"{why}, with commas between them")
    options: dict[str, dict[str, str]] = {name: {} for name in names}
    for name, value in properties.items():
        if name.startswith(_SINK):
            sink, _, option = name.removeprefix(_SINK).partition(".")
            if sink not in options or not option:
                listed = ", ".join(map(repr, names)) or "none"
                why = f"{name!r}: {_SINKS!r} names no sink {sink!r}; it names {listed}"
                raise InvalidInput(where=where, why=why)
            options[sink][option.lower()] = value
    return tuple(_sink(name, options[name], where) for name in names)


def _sink(name: str, options: dict[str, str], where: str) -> SinkProperties:
    if "connector" not in options:
        raise InvalidInput(where=where, why=f"the sink {name!r} needs '{_SINK}{name}.connector'")
    connector = options.pop("connector").lower()
    return SinkProperties(name, connector, options, where.rpartition(", ")[0] or where)
