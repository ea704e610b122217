"""`--set NAME=VALUE`: sets a field of `evertide.settings` by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated

import typer

from evertide.errors import InvalidInput
from evertide.settings import Settings

__all__ = ["Assignments", "make_settings"]

Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, such as writer_ttl_s=5. Can be repeated."),
]


def make_settings(assignments: Sequence[str] | None, **given: float) -> Settings:
    """The defaults, overridden by `given` (options of their own), and then by `assignments`."""
    known = {field.name: field.type for field in fields(Settings)}
    values: dict[str, int | float] = dict(given)
    for text in assignments or ():
        name, _, value = (part.strip() for part in text.partition("="))
        where = f"--set {text}"
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(where=where, why=f"the setting {name!r} does not exist{hint}")
        try:
            values[name] = int(value) if known[name] == "int" else float(value)
        except ValueError:
            kind = "a whole number" if known[name] == "int" else "a number"
            raise InvalidInput(where=where, why=f"{name} must be {kind}, not {value!r}") from None
    return Settings(**values)  # type: ignore[arg-type]
