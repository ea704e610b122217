"""The option `--set NAME=VALUE`: sets a field of `evertide.settings.Settings` by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated

import typer

from evertide.errors import InvalidInput
from evertide.settings import Settings
from evertide.suggestions import suggest

__all__ = ["Assignments", "make_settings"]

Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, such as writer_ttl_s=5. Can be repeated."),
]


def make_settings(assignments: Sequence[str] | None, **options: float) -> Settings:
    """The defaults, overridden by `options` (command line options other than `--set`), and then by `assignments`."""
    types = {field.name: field.type for field in fields(Settings)}
    values: dict[str, int | float] = dict(options)
    for text in assignments or ():
        name, _, value = (part.strip() for part in text.partition("="))
        where = f"--set {text}"
        if name not in types:
            raise InvalidInput(where=where, why=f"the setting {name!r} does not exist{suggest(name, types)}")
        try:
            values[name] = int(value) if types[name] == "int" else float(value)
        except ValueError:
            expected = "a whole number" if types[name] == "int" else "a number"
            raise InvalidInput(where=where, why=f"{name} must be {expected}, not {value!r}") from None
    return Settings(**values)  # type: ignore[arg-type]
