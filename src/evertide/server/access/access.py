"""`Access`: the tokens that a server knows. Without tokens, every client that reaches the server may do everything.

1. The text of a request is compared with every token, each in constant time, so that timing reveals nothing.
2. A token file without tokens is an error: it never means open access.
3. A token file is read again after a change. While requests arrive, the server checks for a change once a second. If
   the changed file cannot be read, the tokens stay as they were, and the log has the reason.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evertide.errors import Forbidden, InvalidInput, NotAllowedNow
from evertide.pipeline.names import ERRORS
from evertide.pipeline.state.members import Members
from evertide.server.access.token import Token
from evertide.server.access.tokens_file import read_environment_tokens, read_token_file

logger = logging.getLogger(__name__)

_CHECK_EVERY_S = 1.0

Signature = tuple[int, ...]


@dataclass(slots=True)
class _TokenFile:
    """The token file, and its signature when it was read."""

    path: Path
    environment: Mapping[str, str]
    shapes_secret: str
    signature: Signature
    checked_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Access:
    """The access tokens of a server; none means that every client may do everything."""

    tokens: tuple[Token, ...] = ()
    _file: _TokenFile | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        names, digests = set[str](), set[bytes]()
        for token in self.tokens:
            if token.name in names or token.digest in digests:
                what = "name" if token.name in names else "text"
                raise InvalidInput(where=f"token {token.name!r}", why=f"another token has the same {what}")
            names.add(token.name)
            digests.add(token.digest)

    @classmethod
    def load(cls, path: Path | None, environment: Mapping[str, str], shapes_secret: str = "") -> Access:
        """Tokens from a file and from the environment; `shapes_secret` is a token with the role read."""
        environment_tokens = read_environment_tokens(environment, shapes_secret)
        if path is None:
            return cls(environment_tokens)
        signature = _read_signature(path)  # before reading the file, so that no change is missed
        tokens = (*read_token_file(path, environment), *environment_tokens)
        return cls(tokens, _TokenFile(path, environment, shapes_secret, signature))

    @property
    def is_open(self) -> bool:
        return not self.tokens

    def reload_if_changed(self, now_s: float) -> Access:
        file = self._file
        if file is None or now_s - file.checked_s < _CHECK_EVERY_S:
            return self
        file.checked_s = now_s
        signature = _read_signature(file.path)
        if signature == file.signature:
            return self
        file.signature = signature
        try:
            access = Access.load(file.path, file.environment, file.shapes_secret)
        except InvalidInput as error:
            message = "cannot read the changed token file; the previous tokens stay valid: %s"
            logger.error(message, error)  # noqa: TRY400 - the error says what to do; a traceback adds nothing
            return self
        logger.info("read the changed token file: %d tokens", len(access.tokens))
        return access

    def find(self, text: str) -> Token | None:
        """The token with this text, even if it has expired: the caller checks that."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        match = None
        for token in self.tokens:  # all of them, also after a match: rule 1
            if hmac.compare_digest(digest, token.digest):
                match = token
        return match


def _read_signature(path: Path) -> Signature:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def warn_of_unusable_restrictions(access: Access, members: Members) -> None:
    """Warn of collections that do not exist, and of clauses that cannot be applied."""
    known = {name.lower() for name in (*members.definition.tables, *members.definition.views, ERRORS)}
    for token in access.tokens:
        for name in sorted(token.restriction.collections or ()):
            if name not in known:
                logger.warning("token %r is restricted to the collection %r, which does not exist", token.name, name)
                continue
            try:
                token.restriction.clause(name, members.open_collection(name).schema)
            except Forbidden as error:
                logger.warning("token %r cannot read the collection %r: %s", token.name, name, error.why)
            except (InvalidInput, NotAllowedNow):  # the collection has no content yet: a request for it reports that
                continue
