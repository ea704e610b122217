"""Resolve and hide secrets: `${ENV:NAME}` is an environment variable, `${FILE:path}` the content of a file.

Scripts are shared and copied, so a password is not in a script, only a reference to it. Its value is never stored and
never shown: code that reports an error passes the text through `Secrets.hide` first.

The log is shared by all connectors and by libraries that do not know about secrets: `hide` removes every secret that
this process was ever given, and passwords in URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

from evertide.errors import InvalidInput

_PLACE = re.compile(r"\$\{(?P<kind>[A-Za-z]+):(?P<name>[^}]*)\}")
_HIDDEN = "***"
_CREDENTIALS = re.compile(r"(?P<user>://[^\s/:@]*):[^\s/@]+@")
_known: set[str] = set()
"""All secrets of this process, as a log line may contain any of them."""


def remember(value: str) -> None:
    """Register a secret that did not come from an option, so that `hide` removes it."""
    if value:
        _known.add(value)


def hide(text: str) -> str:
    """The text without any secret of this process, nor a password in a URL."""
    return _CREDENTIALS.sub(rf"\g<user>:{_HIDDEN}@", _replace_values(text, _known.copy()))


def _replace_values(text: str, values: Iterable[str]) -> str:
    """Replace the values, also where they are URL-encoded."""
    for value in sorted(values, key=len, reverse=True):
        for spelled in {value, quote(value, safe=""), quote(value), quote_plus(value)}:
            text = text.replace(spelled, _HIDDEN)
    return text


class Secrets:
    """The secrets of one connector. Remembers the values that it resolved, to hide them."""

    def __init__(self, base: Path, environment: Mapping[str, str] | None = None) -> None:
        """Files are relative to `base`, the script's directory."""
        self._base = base
        self._environment = os.environ if environment is None else environment
        self._revealed: set[str] = set()

    def reveal(self, text: str, where: str) -> str:
        """Replace each reference by its value. Raises `InvalidInput` if it has none."""
        return _PLACE.sub(lambda match: self._value(match["kind"], match["name"].strip(), where), text)

    def hide(self, text: str) -> str:
        """Remove all resolved values from a text, also where they are URL-encoded."""
        return _replace_values(text, self._revealed)

    def _value(self, kind: str, name: str, where: str) -> str:
        if kind.upper() == "ENV":
            value = self._environment.get(name)
            missing = f"the environment has no variable {name!r}"
        elif kind.upper() == "FILE":
            value, missing = self._content(name), f"the file {name!r} cannot be read"
        else:
            raise InvalidInput(
                where=where, why=f"unknown kind of secret ${{{kind}:...}}; use ${{ENV:NAME}} or ${{FILE:path}}"
            )
        if not value:
            raise InvalidInput(
                where=where, why=missing if value is None else f"the secret ${{{kind.upper()}:{name}}} is empty"
            )
        self._revealed.add(value)
        remember(value)
        return value

    def _content(self, name: str) -> str | None:
        """The file's content without the final line break, which editors add."""
        try:
            return (self._base / name).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return None
