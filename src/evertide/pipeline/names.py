"""Names that readers need as well as the pipeline itself. Importing them does not bring in Spark."""

from __future__ import annotations

__all__ = ["ERRORS", "path_name"]

ERRORS = "evertide_errors"
"""The collection of dead letters, of all tables."""


def path_name(name: str) -> str:
    """A collection's name as part of a path: what is no letter, digit or `_` is written as its code."""
    return "".join(each if each.isascii() and (each.isalnum() or each == "_") else f"={ord(each):x}=" for each in name)
