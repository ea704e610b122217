"""`ErrorList` collects the errors of independent statements of a script, so that its author sees all of them at once.

An error of a statement that reads a broken statement is left out: it is a consequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from evertide.errors import InvalidInput

_POSITION = re.compile(r":(\d+)(?::(\d+))?(?=, |$)")
_NAME = re.compile(r"CREATE\b.*?\b(?:TABLE|VIEW|FLOW)\s+(?:IF\s+NOT\s+EXISTS\s+)?`?(\w+)", re.IGNORECASE | re.DOTALL)
_DECLARES_NOTHING = re.compile(
    r"(?:INSERT|UPDATE|DELETE|MERGE|TRUNCATE|DROP|ALTER|SET|RESET|USE|SELECT|VALUES|FROM|SHOW|DESCRIBE|REFRESH)\b",
    re.IGNORECASE,
)


class ScriptErrors(InvalidInput):
    """Several errors. `where` is that of the first; `why` lists all."""

    errors: tuple[InvalidInput, ...] = ()
    """For people; not kept when the error goes to another process."""


class ErrorList:
    def __init__(self) -> None:
        self._errors: list[InvalidInput] = []
        self._broken: set[str] = set()
        self._is_name_unknown = False

    def is_broken(self, name: str) -> bool:
        """Whether a name may be that of a statement with an error."""
        return name.lower() in self._broken or (self._is_name_unknown and bool(name))

    def add(self, error: InvalidInput, name: str) -> None:
        self._errors.append(error)
        self.mark_broken(name)

    def mark_broken(self, name: str) -> None:
        self._broken.add(name.lower())

    def add_unparsed(self, error: InvalidInput, text: str) -> None:
        """The error of a statement of which only the text is known."""
        found = _NAME.match(text)
        if found is not None:
            self.add(error, found[1])
            return
        self._errors.append(error)
        self._is_name_unknown |= _DECLARES_NOTHING.match(text) is None

    @contextmanager
    def collect(self, name: str) -> Iterator[None]:
        """Collect an error of the block, which adds the statement of this name."""
        try:
            yield
        except InvalidInput as error:
            self.add(error, name)

    def raise_all(self) -> None:
        """Raise the errors in the order of the script; do nothing if there are none."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            found = sorted(self._errors, key=_find_place)
            why = "; ".join([found[0].why, *(f"{each.where}: {each.why}" for each in found[1:])])
            whole = ScriptErrors(where=found[0].where, why=why)
            whole.errors = tuple(found)
            raise whole from found[0]


def _find_place(error: InvalidInput) -> tuple[int, int]:
    found = _POSITION.search(error.where)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)
