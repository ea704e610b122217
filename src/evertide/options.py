"""Parse the options of a connector: unknown options and invalid values are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from evertide.errors import InvalidInput
from evertide.secrets import Secrets
from evertide.suggestions import find_similar, suggest

E = TypeVar("E", bound=StrEnum)


class Options:
    """Names are case-insensitive. `check_unknown` refuses options that were never read, such as misspelt ones."""

    def __init__(self, given: Mapping[str, str], *, connector: str, where: str, secrets: Secrets | None = None) -> None:
        """With `secrets`, values may refer to them; they are resolved when read, and hidden in messages."""
        self.where = where
        self._connector = connector
        self._given = {name.lower(): value for name, value in given.items()}
        self._secrets = secrets
        self._known: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        self._known.append(name)
        value = self._given.get(name.lower(), default)
        return value if self._secrets is None else self._secrets.reveal(value, f"{self.where}, option {name!r}")

    def require(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value and (
            misspelled := find_similar(name, self._given.keys() - {each.lower() for each in self._known})
        ):
            why = f"connector {self._connector!r} has no option {misspelled!r}; did you mean {name!r}?"
            raise InvalidInput(where=self.where, why=why)
        if not value:
            raise self.refusal(name, f"is missing; set it, for example to {example!r}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.text(name, default).lower()
        if value not in choices:
            raise self.refusal(name, f"is {value!r}: expected one of {', '.join(map(repr, choices))}")
        return value

    def member(self, name: str, kind: type[E], default: str) -> E:
        """The member of an enumeration whose value is given."""
        return kind(self.choice(name, [one.value for one in kind], default))

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def integer(self, name: str, default: int, *, least: int = 0) -> int:
        value = self.text(name, str(default))
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise self.refusal(name, f"is {value!r}: expected a whole number of at least {least}")
        return number

    def number(self, name: str, default: float, *, most: float | None = None) -> float:
        """A finite number of at least 0."""
        value = self.text(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf") or (most is not None and number > most):
            expected = "of at least 0" if most is None else f"from 0 to {most:g}"
            raise self.refusal(name, f"is {value!r}: expected a number {expected}")
        return number

    def read_prefixed(self, prefix: str) -> dict[str, str]:
        """The options that start with a prefix, under their names without it."""
        named = [name for name in self._given if name.startswith(prefix.lower())]
        return {name[len(prefix) :]: self.text(name) for name in named}

    def refusal(self, name: str, why: str) -> InvalidInput:
        hidden = why if self._secrets is None else self._secrets.hide(why)
        return InvalidInput(where=self.where, why=f"the option {name!r} {hidden}")

    def check_unknown(self) -> None:
        known = {name.lower() for name in self._known}
        for name in self._given:
            if name not in known:
                hint = suggest(name, self._known) or f"; it has {', '.join(sorted(set(self._known)))}"
                why = f"connector {self._connector!r} has no option {name!r}{hint}"
                raise InvalidInput(where=self.where, why=why)
