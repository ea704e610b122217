"""Checks of keys, the same for every implementation, before a call changes anything; and a lock per key.

A blob key is one or more printable names joined by `/`, none of them empty, `.` or `..`. Names that end in `.tmp`
belong to unfinished puts; a first name that starts with `meta.db` belongs to the database beside the blobs. A Meta key
is any printable text. Evertide makes all keys itself, so a wrong one is `Unexpected`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from evertide.errors import InvalidInput, Unexpected
from evertide.store.meta import Guard, Write
from evertide.store.paths import META_FILE

TEMPORARY = ".tmp"

_KEY_END = "\U0010ffff"  # not printable, so greater than any text that follows a prefix


def is_reserved(key: str) -> bool:
    return key.startswith(META_FILE) or key.endswith(TEMPORARY)


def check_blob_key(key: str) -> str:
    if is_reserved(key):
        raise Unexpected(
            where=f"blob key {key!r}", why=f"names that start with {META_FILE} or end in {TEMPORARY} are reserved"
        )
    if why := _explain_names(key.split("/")):
        raise Unexpected(where=f"blob key {key!r}", why=why)
    return key


def check_blob_prefix(prefix: str) -> str:
    """Return the prefix, empty or with a `/` at its end. A person may have given it as part of an S3 location."""
    if not prefix:
        return ""
    if why := _explain_names(prefix.removesuffix("/").split("/")):
        raise InvalidInput(where=f"prefix {prefix!r}", why=why)
    return prefix.removesuffix("/") + "/"


def check_range(key: str, offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise Unexpected(where=f"blob key {key!r}", why=f"the range of {length} bytes at offset {offset} is negative")


def _explain_names(names: Sequence[str]) -> str:
    """Why the names cannot be part of a key; empty if they can."""
    if all(name.isprintable() and name not in ("", ".", "..") for name in names):
        return ""
    return "the names between / must be printable, and not empty, . or .."


def check_meta_key(key: str) -> str:
    if not key or not key.isprintable():
        raise Unexpected(where=f"Meta key {key!r}", why="a key must be printable and not empty")
    return key


def check_limit(key: str, limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise Unexpected(where=f"Meta key {key!r}", why=f"the limit is {limit} records; it must be at least 1")


def check_commit(writes: Sequence[Write], guards: Sequence[Guard]) -> list[Write | Guard]:
    """Return the writes and guards whose expected number must be compared with the head, in key order."""
    checks: list[Write | Guard] = [*writes, *guards]
    for check in checks:
        check_meta_key(check.key)
    last: dict[str, Write] = {}
    following: set[int] = set()
    for number, write in enumerate(writes):
        before = last.get(write.key)
        if before is not None:
            if before.data is None or write.data is None or write.expected != before.expected + 1:
                raise Unexpected(where=f"Meta key {write.key!r}", why="one commit writes the key twice")
            following.add(number)
        last[write.key] = write
    firsts = [check for number, check in enumerate(checks) if number not in following]
    return sorted(firsts, key=lambda check: check.key)


def key_end(prefix: str) -> str:
    """Return a text greater than every key with this prefix."""
    return prefix + _KEY_END


class KeyLocks:
    """A lock per key. Threads take turns on the same key; different keys do not wait for each other."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._free = threading.Condition()

    @contextlib.contextmanager
    def take(self, key: str) -> Iterator[None]:
        with self._free:
            while key in self._busy:
                self._free.wait()
            self._busy.add(key)
        try:
            yield
        finally:
            with self._free:
                self._busy.remove(key)
                self._free.notify_all()
