"""Read tokens from a file (TOML or JSON lines) and from the environment.

    [[token]]                                JSON lines: one object per line, with the same fields
    name = "dashboard"
    role = "read"                            read, write, admin
    token_sha256 = "9f86d0..."               or token = "...", which may be ${ENV:NAME} or ${FILE:path}
    ends = 2027-01-01T00:00:00Z              optional: when the token expires
    collections = ["orders", "totals"]       optional: the only collections that the token may read
    where = {orders = "region = 'eu'"}       optional: the only rows that the token may read

1. An unknown field is refused, so that a misspelled restriction does not grant more.
2. A file that other users may write is refused, because they could add tokens; so is a file that other users may read,
   if it contains tokens and not only their digests.
3. `EVERTIDE_TOKEN` and `EVERTIDE_TOKEN_ADMIN` are tokens with the role admin, `EVERTIDE_TOKEN_WRITE` and
   `EVERTIDE_TOKEN_READ` with the role write and read. A variable that is set and empty is refused as a mistake.
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
from evertide.server.access.token import Role, Token, hash_token
from evertide.sources.values.strict_json import RepeatedName, decode_json

VARIABLES: Mapping[str, Role] = {
    "EVERTIDE_TOKEN": Role.ADMIN,
    "EVERTIDE_TOKEN_ADMIN": Role.ADMIN,
    "EVERTIDE_TOKEN_WRITE": Role.WRITE,
    "EVERTIDE_TOKEN_READ": Role.READ,
}

_FIELDS = {"name", "role", "token", "token_sha256", "ends", "collections", "where"}
_DIGEST_BYTES = 32


def read_environment_tokens(environment: Mapping[str, str], shapes_secret: str = "") -> tuple[Token, ...]:
    tokens = {}
    for name, role in VARIABLES.items():
        text = environment.get(name)
        if text is None:
            continue
        if not text:
            why = "the variable is empty; unset it, or set it to a token"
            raise InvalidInput(where=f"environment variable {name}", why=why)
        tokens[text] = Token(name, role, hash_token(text, f"environment variable {name}"))
    if shapes_secret and shapes_secret not in tokens:
        tokens[shapes_secret] = Token.of("EVERTIDE_SHAPES_SECRET", Role.READ, shapes_secret)
    return tuple(tokens.values())


def read_token_file(path: Path, environment: Mapping[str, str]) -> tuple[Token, ...]:
    where = f"tokens file {path}"
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidInput(where=where, why=f"cannot read the file: {error.strerror}") from error
    entries = [*_read_entries(content, where)]
    if not entries:
        why = "the file has no tokens; add a [[token]] table, or a JSON object per line"
        raise InvalidInput(where=where, why=why)
    _check_mode(mode, where, has_texts=any("token" in entry for entry in entries))
    secrets = Secrets(path.parent, environment)
    return tuple(_parse_token(entry, f"{where}, token {number}", secrets) for number, entry in enumerate(entries, 1))


def _check_mode(mode: int, where: str, *, has_texts: bool) -> None:
    if os.name != "posix":
        return
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInput(where=where, why="other users may write the file; run `chmod 600` on it")
    if has_texts and mode & stat.S_IROTH:
        why = "other users may read the tokens; run `chmod 600` on the file, or store token_sha256"
        raise InvalidInput(where=where, why=why)


def _read_entries(content: bytes, where: str) -> Iterator[dict[str, Any]]:
    """No error of this function contains text of the file: it has secrets."""
    if content.lstrip()[:1] == b"{":
        yield from _read_lines(content, where)
        return
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = str(error).rpartition("(")[2].rstrip(")") if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        raise InvalidInput(where=where, why=f"the file is neither TOML nor JSON lines: {place}") from None
    entries = document.pop("token", [])
    if document or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput(where=where, why="expected a [[token]] table per token, and nothing else")
    yield from entries


def _read_lines(content: bytes, where: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = decode_json(msgspec.json.Decoder(), line)
        except RepeatedName as error:
            raise InvalidInput(where=f"{where}:{number}", why=str(error)) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InvalidInput(where=f"{where}:{number}", why="expected a JSON object")
        yield value


def _parse_token(entry: Mapping[str, Any], where: str, secrets: Secrets) -> Token:
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        why = f"the field {unknown[0]!r} does not exist; the fields are {', '.join(sorted(_FIELDS))}"
        raise InvalidInput(where=where, why=why)
    name, role = _parse_text(entry, "name", where), _parse_text(entry, "role", where)
    where = f"{where} ({name!r})"
    clauses, names = _parse_clauses(entry, where), _parse_names(entry, where)
    try:
        restriction = Restriction.to(clauses, names)
    except InvalidInput as error:
        raise InvalidInput(where=f"{where}, {error.where}", why=error.why) from error
    return Token(name, Role.parse(role, where), _digest(entry, where, secrets), restriction, _parse_end(entry, where))


def _parse_text(entry: Mapping[str, Any], field: str, where: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(where=where, why=f"the field {field!r} is missing, or is not a text")
    return value


def _digest(entry: Mapping[str, Any], where: str, secrets: Secrets) -> bytes:
    if ("token" in entry) == ("token_sha256" in entry):
        raise InvalidInput(where=where, why="expected exactly one of the fields token and token_sha256")
    if "token" in entry:
        return hash_token(secrets.reveal(_parse_text(entry, "token", where), where), where)
    try:
        digest = bytes.fromhex(_parse_text(entry, "token_sha256", where))
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES:
        raise InvalidInput(where=where, why="token_sha256 must be a SHA-256 digest: 64 hexadecimal digits")
    return digest


def _parse_names(entry: Mapping[str, Any], where: str) -> frozenset[str] | None:
    if "collections" not in entry:
        return None
    value = entry["collections"]
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise InvalidInput(where=where, why="collections must be a list of names")
    return frozenset(value)


def _parse_clauses(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    value = entry.get("where", {})
    if not isinstance(value, dict) or not all(isinstance(text, str) and text.strip() for text in value.values()):
        raise InvalidInput(where=where, why="where must map collections to where clauses")
    if "where" in entry and not value:
        raise InvalidInput(where=where, why="where is empty; remove it, or name a collection")
    return value


def _parse_end(entry: Mapping[str, Any], where: str) -> float | None:
    value = entry.get("ends")
    if value is None:
        return None
    try:
        end = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        end = None
    if not isinstance(end, datetime):
        raise InvalidInput(where=where, why="ends must be a date and time, such as 2027-01-01T00:00:00Z")
    return (end if end.tzinfo is not None else end.replace(tzinfo=UTC)).timestamp()
