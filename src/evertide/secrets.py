"""Secrets in options: `${ENV:NAME}` stands for a variable of the environment, `${FILE:path}` for what a file holds.

A script is read, copied and kept by many; so a password is not in it, only the place where it is found. What is found
there is never stored, and never said: whoever tells of an error passes it through `Secrets.hide` first.

The log is shared by all who have secrets, and by libraries that have not heard of them: `hide` takes out whatever this
process was ever given, and passwords in URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

from evertide.errors import InvalidInput

__all__ = ["Secrets", "hide", "remember"]

_PLACE = re.compile(r"\$\{(?P<kind>[A-Za-z]+):(?P<name>[^}]*)\}")
_HIDDEN = "***"
_CREDENTIALS = re.compile(r"(?P<user>://[^\s/:@]*):[^\s/@]+@")
_known: set[str] = set()
"""All secrets of this process: a line of the log does not say whose it may hold."""


def remember(value: str) -> None:
    """A secret that came by another way than an option: it is in no line of the log from now on."""
    if value:
        _known.add(value)


def hide(text: str) -> str:
    """The text without any secret of this process, nor a password in a URL."""
    return _CREDENTIALS.sub(rf"\g<user>:{_HIDDEN}@", _hidden(text, _known.copy()))


def _hidden(text: str, values: Iterable[str]) -> str:
    """Also where a value is part of a URL."""
    for value in sorted(values, key=len, reverse=True):
        for spelled in {value, quote(value, safe=""), quote(value), quote_plus(value)}:
            text = text.replace(spelled, _HIDDEN)
    return text


class Secrets:
    """Those of one connector. It remembers what it revealed, in order to hide it."""

    def __init__(self, base: Path, environment: Mapping[str, str] | None = None) -> None:
        """Files are relative to `base`, the script's directory."""
        self._base = base
        self._environment = os.environ if environment is None else environment
        self._revealed: set[str] = set()

    def reveal(self, text: str, where: str) -> str:
        """The text, with each place replaced by what is there. `InvalidInput` if nothing is."""
        return _PLACE.sub(lambda found: self._value(found["kind"], found["name"].strip(), where), text)

    def hide(self, text: str) -> str:
        """The text without anything that was revealed, also where it is part of a URL."""
        return _hidden(text, self._revealed)

    def _value(self, kind: str, name: str, where: str) -> str:
        if kind.upper() == "ENV":
            value = self._environment.get(name)
            missing = f"the environment has no variable {name!r}"
        elif kind.upper() == "FILE":
            value, missing = self._content(name), f"the file {name!r} cannot be read"
        else:
            raise InvalidInput(where=where, why=f"${{{kind}:...}}: a secret is ${{ENV:NAME}} or ${{FILE:path}}")
        if not value:
            raise InvalidInput(where=where, why=missing if value is None else f"{kind.upper()}:{name} is empty")
        self._revealed.add(value)
        remember(value)
        return value

    def _content(self, name: str) -> str | None:
        """Without the end of the last line, which editors add."""
        try:
            return (self._base / name).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return None
