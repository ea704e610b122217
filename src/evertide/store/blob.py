"""`Blob`: the interface for immutable bytes under unique keys.

A key is a path of `/`-separated names below the storage's root (`evertide.store.paths` builds them).

Contract, checked for every implementation by `tests/store/test_blob.py`:

1. `put` is atomic and durable on return: after a power cut the blob is complete or absent. A reader never sees a part
   of it.
2. Keys are unique and bytes never change, so the caller repeats a `put` whose outcome is unknown: putting the same
   bytes again succeeds. Putting other bytes under an existing key raises `Conflict`, and the first bytes stay.
3. `get` returns all bytes, or raises `BlobMissing` with the path. It does not check digests: the caller does.
   `get_range` returns `data[offset : offset + length]`, and like that slice it ends where the bytes end. A caller that
   requests one byte more than expected learns whether the blob has the right length.
4. `delete` is idempotent and durable on return. It returns True if the blob existed.
5. `list` yields every blob below a prefix (a whole number of path names) in key order. It may or may not include a blob
   that is put or deleted meanwhile.
6. `list_unfinished` yields the keys of puts that began and did not end (a crash left a temporary file, an upload was
   cut). `delete` of such a key removes the remains.
7. Failures are typed (I14): `Unavailable` (and its subclasses `StorageFull` and `StorageForbidden`) if nothing
   happened, `OutcomeUnknown` if the write may have happened. Reads raise `Unavailable` only.
8. Implementations are safe to share between threads, and picklable where executors can reach the same storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class BlobEntry:
    key: str
    bytes: int


class Blob(Protocol):
    """Immutable bytes under unique keys; the header has the rules."""

    def get(self, key: str) -> bytes: ...

    def get_range(self, key: str, offset: int, length: int) -> bytes: ...

    def put(self, key: str, data: bytes) -> None: ...

    def delete(self, key: str) -> bool: ...

    def list(self, prefix: str) -> Iterator[BlobEntry]: ...

    def list_unfinished(self, prefix: str) -> Iterator[str]: ...

    def path(self, key: str) -> str:
        """The blob's location, for messages."""
        ...


def list_keys(blob: Blob, prefix: str) -> list[str]:
    """The keys of all blobs with a prefix, and of the puts that began and did not end."""
    return [*(entry.key for entry in blob.list(prefix)), *blob.list_unfinished(prefix)]
