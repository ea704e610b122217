"""`Token`: a name, a role, and the digest of a secret text. The text itself is not kept.

1. Each role includes the ones before it: read, write, admin.
2. A token that is restricted to collections, or to rows of them, has the role read: restrictions do not limit writes.
3. A token has at least 16 characters. Its digest is not salted, because tokens are random texts and not passwords:
   `openssl rand -hex 32`.
4. A token may expire, by the clock of this machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from evertide.errors import InvalidInput
from evertide.pgexpr.restriction import UNRESTRICTED, Restriction
from evertide.secrets import remember

LENGTH_MIN = 16


class Role(IntEnum):
    READ = 1
    WRITE = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, text: str, where: str) -> Role:
        role = cls.__members__.get(text.upper())
        if role is None:
            raise InvalidInput(where=where, why=f"the role {text!r} does not exist; use read, write or admin")
        return role


@dataclass(frozen=True, slots=True)
class Token:
    """An access token: its name, role and restriction, without its text."""

    name: str
    role: Role
    digest: bytes = field(repr=False)
    """SHA-256."""
    restriction: Restriction = UNRESTRICTED
    ends_at_s: float | None = None
    """None: never."""

    def __post_init__(self) -> None:
        where = f"token {self.name!r}"
        if not self.name.strip():
            raise InvalidInput(where="token", why="the name is empty")
        if not self.restriction.is_unrestricted and self.role is not Role.READ:
            why = f"a token that is restricted to collections must have the role read, not {self.role}"
            raise InvalidInput(where=where, why=why)
        try:
            self.restriction.check_syntax()
        except InvalidInput as error:
            raise InvalidInput(where=f"{where}, {error.where}", why=error.why) from error

    @property
    def where(self) -> Mapping[str, str]:
        """Where clauses by the name of the collection in lower case."""
        return dict(self.restriction.where)

    @classmethod
    def of(cls, name: str, role: Role, text: str, restriction: Restriction = UNRESTRICTED) -> Token:
        """`text` is the secret."""
        return cls(name, role, hash_token(text, f"token {name!r}"), restriction)


def hash_token(text: str, where: str) -> bytes:
    if len(text) < LENGTH_MIN or text != text.strip():
        why = f"a token has at least {LENGTH_MIN} characters, no spaces around it; `openssl rand -hex 32` makes one"
        raise InvalidInput(where=where, why=why)
    remember(text)  # so that the log never shows it
    return hashlib.sha256(text.encode()).digest()
