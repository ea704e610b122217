"""TBLPROPERTIES that Evertide knows: a name that is misspelt, or a value that means nothing, is refused.

    evertide.keep       of a table: 'all' (it has a shard), or 'none' (only views over it are stored)
    evertide.refresh    of a view: 'incremental', which is what all views are

Properties of other names are the user's own, and are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from evertide.errors import InvalidInput

__all__ = ["check_properties"]

_OURS = "evertide."
_TABLE = {"evertide.keep": ("all", "none")}
_VIEW = {"evertide.refresh": ("incremental",)}


def check_properties(properties: Mapping[str, str], *, is_view: bool, where: str) -> None:
    known = _VIEW if is_view else _TABLE
    for name, value in properties.items():
        if not name.startswith(_OURS):
            continue
        if name not in known:
            raise InvalidInput(where=where, why=f"there is no property {name!r}; known are {sorted(known)}")
        if value not in known[name]:
            values = " or ".join(map(repr, known[name]))
            raise InvalidInput(where=where, why=f"{name!r} is {value!r}, but can be {values} only")
