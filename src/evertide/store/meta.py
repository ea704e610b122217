"""`Meta`: a small compare-and-set log per key.

A key holds records 1, 2, 3, ...; its newest is the head. Everything that must change together changes in one `commit`
over several keys, which is what makes "all at once" (I4) and fencing (I16) simple.

Contract, checked for every implementation by `tests/store/test_meta.py`:

1. `commit(writes, guards)` happens if and only if every written and every guarded key's head has the expected number
   (0: the key has no record). A write appends record `expected + 1`; a write without data removes the key with all its
   records. All of it is durable on return, or none of it ever is. Several writes of one key append records that
   follow each other, each of which expects the one before; otherwise no key may be written twice in one commit.
2. If a number differs nothing is written and the answer is a `Stale`, naming the first such key in order of keys. It is
   a value, not an error: losing a race is ordinary. None is the answer of a commit that happened.
3. A removed key starts again at 0, so only keys with a never-reused id in their name may be removed: otherwise a guard
   could mistake the new key for the old.
4. `scan(key, after, limit)` yields the records above `after`, without gaps, oldest first, as of one moment: all of
   them, or with a limit (1 and up) the first so many, and then it costs what these cost, not what lies behind them.
   `heads(prefix)` yields the newest record of every key with that prefix, in key order, as of one moment.
5. `truncate(key, below)` forgets records below a number; the head always stays.
6. Failures are typed (I14): `Unavailable` means that nothing happened, `OutcomeUnknown` that the commit may have. A
   commit whose outcome is unknown may even still be under way: read back, and commit again with the same expectations,
   of which at most one can succeed. Reads raise `Unavailable` only; an unreadable store raises `RecordDamaged`.
7. `wait(key, after, timeout_s)` returns True as soon as the head may be above `after`: at once for commits through this
   object, by polling for those of other processes; False after the timeout. It may return True early, never too late.
8. Implementations are safe to share between threads; other processes open their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evertide.types import SequenceNumber

__all__ = ["Guard", "Meta", "Record", "Stale", "Write"]


@dataclass(frozen=True, slots=True)
class Record:
    seqno: SequenceNumber
    data: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """Append `data` as record `expected + 1` of `key`, or remove the key if there is no data."""

    key: str
    expected: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Guard:
    """The key must be as it was read, without being written."""

    key: str
    expected: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The commit did not happen: `key` stood at `found`, not at `expected`."""

    key: str
    expected: int
    found: SequenceNumber


class Meta(Protocol):
    def head(self, key: str) -> Record | None: ...

    def heads(self, prefix: str) -> dict[str, Record]: ...

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]: ...

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None: ...

    def truncate(self, key: str, below: int) -> None: ...

    def wait(self, key: str, after: int, timeout_s: float) -> bool: ...

    def close(self) -> None: ...

    def path(self, key: str) -> str:
        """Where a person would look for the record: for messages."""
        ...
