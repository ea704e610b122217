"""`Blob`: immutable bytes under unique keys.

Words: a key is a path of `/`-separated names below the storage's root (`evertide.store.paths` makes them).

Contract, checked for every implementation by `tests/store/test_blob.py`:

1. `put` is atomic and durable on return: after a power cut the blob is there whole, or it is not there. A reader never
   sees a part of it.
2. Keys are unique and bytes never change, so a `put` whose outcome is unknown is simply repeated: putting the same
   bytes again succeeds. Putting other bytes under a key that is taken raises `Conflict`, and the first bytes stay.
3. `get` returns all bytes, or raises `BlobMissing` with the path. It does not check digests: whoever knows them does.
   `get_range` returns `data[offset : offset + length]`, and like that slice it ends where the bytes do: asking for one
   byte more than there should be tells whether a blob has the right length.
4. `delete` is idempotent, and durable on return: True if the blob was there.
5. `list` yields every blob below a prefix (a whole number of path names) in key order. A blob put or deleted meanwhile
   may or may not be in it.
6. `unfinished` yields the keys of puts that began and did not end (a crash left a temporary file, an upload was cut).
   `delete` of such a key removes the remains.
7. Failures are typed (I14): `Unavailable` (and below it `StorageFull`, `StorageForbidden`) if nothing happened,
   `OutcomeUnknown` if it may have. Reads raise `Unavailable` only.
8. Implementations are safe to share between threads, and picklable where executors can reach the same storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Blob", "BlobEntry"]


@dataclass(frozen=True, slots=True, order=True)
class BlobEntry:
    key: str
    bytes: int


class Blob(Protocol):
    def get(self, key: str) -> bytes: ...

    def get_range(self, key: str, offset: int, length: int) -> bytes: ...

    def put(self, key: str, data: bytes) -> None: ...

    def delete(self, key: str) -> bool: ...

    def list(self, prefix: str) -> Iterator[BlobEntry]: ...

    def unfinished(self, prefix: str) -> Iterator[str]: ...

    def path(self, key: str) -> str:
        """Where a person would look for the blob: for messages."""
        ...
