"""`S3Blob`: the error of each failure, a store that replaces objects, and secrets that are never shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import (
    Conflict,
    EvertideError,
    OutcomeUnknown,
    SetupIncomplete,
    StorageForbidden,
    StorageFull,
    Unavailable,
)
from evertide.store import Blob, S3Blob
from tests.servers.s3 import S3Server


def calls(blob: Blob) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: blob.get("p/a"),
        "get_range": lambda: blob.get_range("p/a", 0, 1),
        "list": lambda: list(blob.list("p/")),
        "put": lambda: blob.put("p/a", b"1"),
        "delete": lambda: blob.delete("p/a"),
    }


@pytest.fixture
def blob(s3_server: S3Server, request: pytest.FixtureRequest) -> S3Blob:
    return S3Blob(s3_server.bucket, f"s3/{request.node.name}", **s3_server.options)


def test_a_blob_is_stored_under_its_path(s3_server: S3Server, blob: S3Blob) -> None:
    blob.put("p/a", b"1")
    path = blob.path("p/a")
    assert path.startswith(f"s3://{s3_server.bucket}/s3/")
    assert (s3_server.root / Path(path.removeprefix("s3://"))).read_bytes() == b"1"


def test_prefixes_are_separate(s3_server: S3Server) -> None:
    one, two, whole = (S3Blob(s3_server.bucket, prefix, **s3_server.options) for prefix in ("x/one", "/x/on/", "x"))
    one.put("a", b"1")
    assert list(two.list("")) == []
    assert [entry.key for entry in whole.list("")] == ["one/a"]


@pytest.mark.parametrize("name", ["get", "get_range", "list", "put", "delete"])
def test_rule_7_a_wrong_secret_is_forbidden(s3_server: S3Server, name: str) -> None:
    blob = S3Blob(s3_server.bucket, "p", **{**s3_server.options, "secret_access_key": "wrong"})
    with pytest.raises(StorageForbidden):
        calls(blob)[name]()


@pytest.mark.parametrize("name", ["get", "get_range", "list", "put", "delete"])
def test_rule_7_an_unreachable_server_did_nothing(s3_server: S3Server, name: str) -> None:
    blob = S3Blob(s3_server.bucket, "p", **{**s3_server.options, "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(Unavailable) as caught:
        calls(blob)[name]()
    assert type(caught.value) is Unavailable


@pytest.mark.parametrize("name", ["get", "get_range", "list", "put", "delete"])
def test_rule_7_a_missing_bucket_is_not_reported_as_a_missing_blob(s3_server: S3Server, name: str) -> None:
    blob = S3Blob("no-such-bucket", "p", **s3_server.options)
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        calls(blob)[name]()


class FailingClient:
    """obstore, except for one call."""

    def __init__(self, inner: Any, name: str, error: Exception, *, after: bool = False) -> None:
        self._inner, self._name, self._error, self._after = inner, name, error, after

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._name else getattr(self._inner, name)

    def _fail(self, *args: Any, **kwargs: Any) -> None:
        if self._after:
            getattr(self._inner, self._name)(*args, **kwargs)
        raise self._error


@pytest.mark.parametrize("name", ["put", "delete"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("HTTP error: operation timed out, kind: Timeout", OutcomeUnknown),
        ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", OutcomeUnknown),
        ("Server returned non-2xx status code: 507 Insufficient Storage: XMinioStorageFull", StorageFull),
        ("Server returned non-2xx status code: 403 Forbidden", StorageForbidden),
        ("HTTP error: error sending request, kind: Connect", Unavailable),
    ],
)
def test_rule_7_failures_of_writes(blob: S3Blob, name: str, text: str, kind: type[EvertideError]) -> None:
    error = blob._obstore.exceptions.GenericError(text)
    blob._obstore = FailingClient(blob._obstore, name, error)
    with pytest.raises(kind) as caught:
        calls(blob)[name]()
    assert type(caught.value) is kind
    assert caught.value.facts["path"] == blob.path("p/a")


def test_rule_3_a_range_of_a_store_that_answers_with_one(blob: S3Blob) -> None:
    """The server of these tests does not. Only the range is requested then, and no more bytes are returned."""
    inner, asked = blob._obstore, []

    class Ranged:
        exceptions = inner.exceptions

        @staticmethod
        def get_range(_store: Any, key: str, *, start: int, length: int) -> bytes:
            asked.append((key, start, length))
            if start >= 10:
                raise inner.exceptions.GenericError("non-2xx status code: 416 Range Not Satisfiable: InvalidRange")
            return b"0123456789"[start : start + length]

    blob._obstore = Ranged
    ranges = [(0, 3), (8, 5), (4, 0), (10, 1), (12, 0)]
    assert [blob.get_range("p/a", *found) for found in ranges] == [b"012", b"89", b"", b"", b""]
    assert asked == [("p/a", 0, 3), ("p/a", 8, 5), ("p/a", 4, 1), ("p/a", 10, 1), ("p/a", 12, 1)]


def test_rule_2_a_put_whose_answer_was_lost_is_repeated(blob: S3Blob) -> None:
    inner = blob._obstore
    blob._obstore = FailingClient(inner, "put", inner.exceptions.GenericError("kind: Timeout"), after=True)
    with pytest.raises(OutcomeUnknown):
        blob.put("p/a", b"1")
    blob._obstore = inner
    blob.put("p/a", b"1")
    with pytest.raises(Conflict):
        blob.put("p/a", b"2")


@pytest.mark.parametrize("first", [b"mine", b"theirs"])
def test_rule_2_a_store_that_honours_create_decides_a_race(blob: S3Blob, first: bytes) -> None:
    """Another process's put happens between this one's check and its put, and the store reports that."""
    inner = blob._obstore

    class Racing:
        exceptions = inner.exceptions
        get = staticmethod(inner.get)

        @staticmethod
        def put(store: Any, key: str, data: bytes, *, mode: str, use_multipart: bool) -> None:
            assert (mode, use_multipart) == ("create", False)
            inner.put(store, key, first)
            raise inner.exceptions.AlreadyExistsError("412 Precondition Failed")

    blob._obstore = Racing
    if first == b"mine":
        blob.put("p/a", b"mine")
    else:
        with pytest.raises(Conflict):
            blob.put("p/a", b"mine")
    assert blob.get("p/a") == first


def test_secrets_are_never_shown(s3_server: S3Server, blob: S3Blob) -> None:
    assert s3_server.secret_access_key not in repr(blob) + blob.path("p/a")
    error = blob._obstore.exceptions.GenericError(
        f"signed with {s3_server.secret_access_key}, by {s3_server.access_key_id}"
    )
    blob._obstore = FailingClient(blob._obstore, "put", error)
    with pytest.raises(OutcomeUnknown) as caught:
        blob.put("p/a", b"1")
    assert s3_server.secret_access_key not in str(caught.value)
    assert caught.value.__suppress_context__


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SetupIncomplete, match=r"'obstore' is missing: pip install 'evertide\[s3\]'"):
        S3Blob("bucket", "prefix")
