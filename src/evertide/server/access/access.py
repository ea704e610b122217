"""`Access`: the tokens that a server knows. None: whoever reaches it may do everything.

1. A text that is given is compared with all tokens, each in constant time: how long it takes tells nothing.
2. Whoever asks for tokens to be read gets tokens, or an error: a file without any is never "everybody may".
3. A file of tokens is read again when it has changed, which is looked at once a second while somebody asks. If it
   cannot be read then, the tokens stay as they were, and the log says why.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evertide.errors import InvalidInput
from evertide.server.access.token import Token
from evertide.server.access.tokens_file import tokens_of_environment, tokens_of_file

__all__ = ["Access"]

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0

Signature = tuple[int, ...]


@dataclass(slots=True)
class _File:
    """Where tokens came from, and how the file was then."""

    path: Path
    environment: Mapping[str, str]
    shapes_secret: str
    signature: Signature
    looked_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Access:
    tokens: tuple[Token, ...] = ()
    _file: _File | None = field(default=None, compare=False, repr=False)

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
        of_environment = tokens_of_environment(environment, shapes_secret)
        if path is None:
            return cls(of_environment)
        file = _File(path, environment, shapes_secret, _signature(path))  # before it is read: a later change shows
        return cls((*tokens_of_file(path, environment), *of_environment), file)

    @property
    def is_open(self) -> bool:
        return not self.tokens

    def renewed(self, now_s: float) -> Access:
        """As the file says now."""
        file = self._file
        if file is None or now_s - file.looked_s < _LOOK_EVERY_S:
            return self
        file.looked_s = now_s
        signature = _signature(file.path)
        if signature == file.signature:
            return self
        file.signature = signature
        try:
            found = Access.load(file.path, file.environment, file.shapes_secret)
        except InvalidInput as error:
            why = "the tokens stay as they were, as the file that was changed cannot be read: %s"
            logger.error(why, error)  # noqa: TRY400 - the error says what to do, and a trace nothing more
            return self
        logger.info("the tokens were read again: there are %d", len(found.tokens))
        return found

    def find(self, text: str) -> Token | None:
        """Also one that has ended: whoever asks looks at that."""
        given = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        found = None
        for token in self.tokens:  # all of them, also after one was found
            if hmac.compare_digest(given, token.digest):
                found = token
        return found


def _signature(path: Path) -> Signature:
    try:
        there = path.stat()
    except OSError:
        return ()
    return there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns
