"""`S3Blob`: blobs as objects, `s3://<bucket>/<prefix>/<key>`, on any S3-compatible store.

1. A put is one request, which a store accepts completely or not at all. So there are no unfinished uploads, and
   `list_unfinished` yields nothing.
2. A put first checks whether the key exists, then sends `If-None-Match: *`, so that the store creates the object and
   never replaces one. Stores that honour the header (AWS, MinIO, R2) refuse the second of two concurrent puts. Some
   ignore it silently (`rclone serve s3`): there only the check protects. Keys contain the id of their writer, so no two
   processes put the same key; threads of this process take turns.
3. This module does not retry: an error after several attempts would not say whether one of them arrived. If no
   connection was made, or the store refused, nothing happened; any other failed write is `OutcomeUnknown`.
4. A range is one request. If a store answers with the whole object instead (`rclone serve s3`), a plain get follows.
5. Credentials come from the options or the environment, and are in no path, message or representation.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from evertide.errors import (
    BlobMissing,
    Conflict,
    EvertideError,
    OutcomeUnknown,
    StorageForbidden,
    StorageFull,
    Unavailable,
)
from evertide.extras import import_extra
from evertide.store.blob import BlobEntry
from evertide.store.keys import KeyLocks, check_blob_key, check_blob_prefix, check_range

# The scheme http:// in an endpoint is a deliberate choice.
_CLIENT = {"connect_timeout": "5s", "timeout": "120s", "allow_http": True}
_REFUSED = ("kind: Connect", "400 Bad", "404 Not Found", "NoSuchBucket")
_FORBIDDEN = ("401 Unauthorized", "403 Forbidden")
_BEYOND = ("416 Range", "InvalidRange")
_WHOLE = ("NotPartial", "non-partial response")
_FULL = ("507 ", "XMinioStorageFull", "QuotaExceeded")


class S3Blob:
    """`options` are those of `obstore.store.S3Store`: `endpoint`, `region`, `access_key_id`, ..."""

    def __init__(self, bucket: str, prefix: str = "", **options: Any) -> None:
        self._place = f"s3://{bucket}/{check_blob_prefix(prefix.strip('/'))}"
        self._arguments = (bucket, prefix, options)
        self._key_locks = KeyLocks()
        self._obstore = import_extra("obstore", "s3", "an S3 storage")
        client = {**_CLIENT, **options.get("client_options", {})}
        self._store = importlib.import_module("obstore.store").S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            **{"retry_config": {"max_retries": 0}, **options, "client_options": client},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, self._arguments

    def __repr__(self) -> str:
        return f"S3Blob({self._place!r})"

    def path(self, key: str) -> str:
        return f"{self._place}{key}"

    def get(self, key: str) -> bytes:
        check_blob_key(key)
        data = self._get(key)
        if data is None:
            raise BlobMissing(path=self.path(key), why="there is no such object")
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_blob_key(key)
        check_range(key, offset, length)
        try:
            # An empty range cannot be requested; one byte shows whether the blob exists.
            found = self._obstore.get_range(self._store, key, start=offset, length=max(1, length))
        except FileNotFoundError as error:
            self._check_bucket(key, error)
            raise BlobMissing(path=self.path(key), why="there is no such object") from None
        except (self._obstore.exceptions.BaseError, OSError) as error:
            if any(sign in str(error) for sign in _BEYOND):
                return b""
            if any(sign in str(error) for sign in _WHOLE):
                return self.get(key)[offset : offset + length]
            raise self._convert_error(key, error) from None
        return bytes(found)[:length]

    def put(self, key: str, data: bytes) -> None:
        check_blob_key(key)
        with self._key_locks.take(key):
            if self._check_free(key, data):
                return
            try:
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                self._check_free(key, data)
            except (self._obstore.exceptions.BaseError, OSError) as error:
                raise self._convert_write_error(key, error) from None

    def delete(self, key: str) -> bool:
        check_blob_key(key)
        with self._key_locks.take(key):
            found = self._exists(key)
            try:
                self._obstore.delete(self._store, key)
            except (self._obstore.exceptions.BaseError, OSError) as error:
                raise self._convert_write_error(key, error) from None
        return found

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        """Sort here, because not every S3-compatible store lists in order."""
        prefix = check_blob_prefix(prefix)
        try:
            found = [
                BlobEntry(entry["path"], entry["size"])
                for entries in self._obstore.list(self._store, prefix.rstrip("/") or None)
                for entry in entries
            ]
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise self._convert_error(prefix, error) from None
        return iter(sorted(found))

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        """Yield nothing: every put is a single request."""
        check_blob_prefix(prefix)
        return iter(())

    def _get(self, key: str) -> bytes | None:
        try:
            return bytes(self._obstore.get(self._store, key).bytes())
        except FileNotFoundError as error:
            self._check_bucket(key, error)
            return None
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise self._convert_error(key, error) from None

    def _exists(self, key: str) -> bool:
        try:
            self._obstore.head(self._store, key)
        except FileNotFoundError as error:
            self._check_bucket(key, error)
            return False
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise self._convert_error(key, error) from None
        return True

    def _check_bucket(self, key: str, error: Exception) -> None:
        """Raise `Unavailable` if the whole bucket is missing, not only a blob."""
        if "NoSuchBucket" in str(error):
            raise self._convert_error(key, error) from None

    def _check_free(self, key: str, data: bytes) -> bool:
        first = self._get(key)
        if first is not None and first != data:
            raise Conflict(where=self.path(key), why="the key exists with other bytes")
        return first is not None

    def _convert_write_error(self, key: str, error: Exception) -> EvertideError:
        refused = self._convert_error(key, error)
        if type(refused) is Unavailable and not any(sign in str(error) for sign in _REFUSED):
            return OutcomeUnknown(path=refused.path, why=refused.why)
        return refused

    def _convert_error(self, key: str, error: Exception) -> Unavailable:
        text = str(error)
        why = self._hide_secrets(text.partition("\n\nDebug source")[0])
        denied = (self._obstore.exceptions.PermissionDeniedError, self._obstore.exceptions.UnauthenticatedError)
        if isinstance(error, denied) or any(sign in text for sign in _FORBIDDEN):
            return StorageForbidden(path=self.path(key), why=why)
        if any(sign in text for sign in _FULL):
            return StorageFull(path=self.path(key), why=why)
        return Unavailable(path=self.path(key), why=why)

    def _hide_secrets(self, text: str) -> str:
        for name, value in self._arguments[2].items():
            if isinstance(value, str) and any(word in name for word in ("key", "secret", "token")):
                text = text.replace(value, "***")
        return " ".join(text.split())


def _unpickle(bucket: str, prefix: str, options: dict[str, Any]) -> S3Blob:
    return S3Blob(bucket, prefix, **options)
