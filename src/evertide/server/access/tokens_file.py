"""Where tokens come from: a file, TOML or JSON lines, and the environment.

    [[token]]                                JSON lines: an object in each line, of the same fields
    name = "dashboard"
    role = "read"                            read, write, admin
    token_sha256 = "9f86d0..."               or token = "...", which may be ${ENV:NAME} or ${FILE:path}
    ends = 2027-01-01T00:00:00Z              not needed
    collections = ["orders", "totals"]       not needed: these, and no others
    where = {orders = "region = 'eu'"}       not needed: these rows, and no others

1. A field that is not known is refused: a restriction that is misspelled must not be none.
2. A file that others may write is refused, as they could let themselves in; so is one that others may read, if it holds
   tokens and not only their digests.
3. `EVERTIDE_TOKEN` and `EVERTIDE_TOKEN_ADMIN` are tokens of role admin, `_WRITE` and `_READ` of theirs. One that is
   set and empty is refused: somebody meant to set it.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from evertide.errors import InvalidInput
from evertide.pgexpr.restriction import Restriction
from evertide.secrets import Secrets
from evertide.server.access.token import Role, Token, digest_of
from evertide.sources.values.strict_json import RepeatedName, decode_json

__all__ = ["VARIABLES", "tokens_of_environment", "tokens_of_file"]

VARIABLES: Mapping[str, Role] = {
    "EVERTIDE_TOKEN": Role.ADMIN,
    "EVERTIDE_TOKEN_ADMIN": Role.ADMIN,
    "EVERTIDE_TOKEN_WRITE": Role.WRITE,
    "EVERTIDE_TOKEN_READ": Role.READ,
}

_FIELDS = {"name", "role", "token", "token_sha256", "ends", "collections", "where"}
_DIGEST_BYTES = 32


def tokens_of_environment(environment: Mapping[str, str], shapes_secret: str = "") -> tuple[Token, ...]:
    made = {}
    for name, role in VARIABLES.items():
        text = environment.get(name)
        if text is None:
            continue
        if not text:
            raise InvalidInput(where=f"environment variable {name}", why="it is set, and empty")
        made[text] = Token(name, role, digest_of(text, f"environment variable {name}"))
    if shapes_secret and shapes_secret not in made:
        made[shapes_secret] = Token.of("EVERTIDE_SHAPES_SECRET", Role.READ, shapes_secret)
    return tuple(made.values())


def tokens_of_file(path: Path, environment: Mapping[str, str]) -> tuple[Token, ...]:
    where = f"tokens file {str(path)!r}"
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidInput(where=where, why=f"it cannot be read: {error.strerror}") from error
    given = [*_objects(content, where)]
    if not given:
        raise InvalidInput(where=where, why="it holds no token: a [[token]] each, or a JSON object in each line")
    _check_mode(mode, where, has_texts=any("token" in one for one in given))
    secrets = Secrets(path.parent, environment)
    return tuple(_token(one, f"{where}, token {number}", secrets) for number, one in enumerate(given, 1))


def _check_mode(mode: int, where: str, *, has_texts: bool) -> None:
    if os.name != "posix":
        return
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInput(where=where, why="others than its owner may write it: `chmod 600` it")
    if has_texts and mode & stat.S_IROTH:
        raise InvalidInput(where=where, why="everybody may read the tokens in it: `chmod 600` it, or keep token_sha256")


def _objects(content: bytes, where: str) -> Iterator[dict[str, Any]]:
    """What is said of a file that cannot be read has nothing of its text in it."""
    if content.lstrip()[:1] == b"{":
        yield from _lines(content, where)
        return
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = str(error).rpartition("(")[2].rstrip(")") if isinstance(error, tomllib.TOMLDecodeError) else "no UTF-8"
        raise InvalidInput(where=where, why=f"it is neither TOML nor JSON lines: {place}") from None
    found = document.pop("token", [])
    if document or not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidInput(where=where, why="expected a [[token]] for each token, and nothing else")
    yield from found


def _lines(content: bytes, where: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = decode_json(msgspec.json.Decoder(), line)
        except RepeatedName as error:
            raise InvalidInput(where=f"{where}, line {number}", why=str(error)) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InvalidInput(where=f"{where}, line {number}", why="it is no JSON object")
        yield value


def _token(given: Mapping[str, Any], where: str, secrets: Secrets) -> Token:
    unknown = sorted(set(given) - _FIELDS)
    if unknown:
        raise InvalidInput(where=where, why=f"there is no field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    name, role = _text(given, "name", where), _text(given, "role", where)
    where = f"{where} ({name!r})"
    try:
        restriction = Restriction.to(_clauses(given, where), _names(given, where))
    except InvalidInput as error:
        raise InvalidInput(where=f"{where}, {error.where}", why=error.why) from error
    return Token(name, Role.named(role, where), _digest(given, where, secrets), restriction, _ends(given, where))


def _text(given: Mapping[str, Any], field: str, where: str) -> str:
    value = given.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(where=where, why=f"{field} is not there, or no text")
    return value


def _digest(given: Mapping[str, Any], where: str, secrets: Secrets) -> bytes:
    if ("token" in given) == ("token_sha256" in given):
        raise InvalidInput(where=where, why="expected either token or token_sha256")
    if "token" in given:
        return digest_of(secrets.reveal(_text(given, "token", where), where), where)
    try:
        found = bytes.fromhex(_text(given, "token_sha256", where))
    except ValueError:
        found = b""
    if len(found) != _DIGEST_BYTES:
        raise InvalidInput(where=where, why="token_sha256 is no SHA-256: it has 64 hexadecimal digits")
    return found


def _names(given: Mapping[str, Any], where: str) -> frozenset[str] | None:
    if "collections" not in given:
        return None
    value = given["collections"]
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise InvalidInput(where=where, why="collections is no list of names")
    return frozenset(value)


def _clauses(given: Mapping[str, Any], where: str) -> dict[str, str]:
    value = given.get("where", {})
    if not isinstance(value, dict) or not all(isinstance(text, str) and text.strip() for text in value.values()):
        raise InvalidInput(where=where, why="where is no table of clauses by collection")
    if "where" in given and not value:
        raise InvalidInput(where=where, why="where is empty: leave it out, or name a collection")
    return value


def _ends(given: Mapping[str, Any], where: str) -> float | None:
    value = given.get("ends")
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime):
        raise InvalidInput(where=where, why="ends is no moment, as 2027-01-01T00:00:00Z is")
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
