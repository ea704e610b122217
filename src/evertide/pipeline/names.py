"""The name of the collection of dead letters, and names of collections in paths. Importing it does not import Spark."""

from __future__ import annotations

ERRORS = "evertide_errors"
"""The collection of the dead letters of all tables."""


def encode_path_name(name: str) -> str:
    """A collection's name for use in a path: characters other than ASCII letters, digits and `_` are encoded."""
    return "".join(each if each.isascii() and (each.isalnum() or each == "_") else f"={ord(each):x}=" for each in name)
