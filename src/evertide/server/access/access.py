"""`Access`: the tokens that a server knows. None: whoever reaches it may do everything.

1. A text that is given is compared with all tokens, each in constant time: how long it takes tells nothing.
2. Whoever asks for tokens to be read gets tokens, or an error: a file without any is never "everybody may".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from evertide.errors import InvalidInput
from evertide.server.access.token import Token
from evertide.server.access.tokens_file import tokens_of_environment, tokens_of_file

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    tokens: tuple[Token, ...] = ()

    def __post_init__(self) -> None:
        names, digests = set[str](), set[bytes]()
        for token in self.tokens:
            if token.name in names or token.digest in digests:
                what = "name" if token.name in names else "text"
                raise InvalidInput(where=f"token {token.name!r}", why=f"another token has the same {what}")
            names.add(token.name)
            digests.add(token.digest)

    @classmethod
    def open(cls) -> Access:
        """For whoever reaches the server."""
        return cls()

    @classmethod
    def of(cls, tokens: Iterable[Token]) -> Access:
        return cls(tuple(tokens))

    @classmethod
    def load(cls, path: Path | None, environment: Mapping[str, str], shapes_secret: str = "") -> Access:
        """From a file, and from the environment; `shapes_secret` is a token that may read."""
        from_file = tokens_of_file(path, environment) if path is not None else ()
        return cls((*from_file, *tokens_of_environment(environment, shapes_secret)))

    @property
    def is_open(self) -> bool:
        return not self.tokens

    def find(self, text: str) -> Token | None:
        """Also one that has ended: whoever asks looks at that."""
        given = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        found = None
        for token in self.tokens:  # all of them, also after one was found
            if hmac.compare_digest(given, token.digest):
                found = token
        return found
