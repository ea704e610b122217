"""The contract of `Blob`, rule by rule, for every implementation."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from evertide.errors import BlobMissing, Conflict, InvalidInput, Unexpected
from evertide.observer import Observer
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import Blob, LocalBlob, MemoryBlob, S3Blob
from evertide.store.observed import ObservedBlob
from tests.kit.faulty import Faults, FaultyBlob
from tests.kit.runtime import ManualRuntime
from tests.servers.s3 import S3Server
from tests.store.race import together
from tests.store.settled import SettledBlob, retry

EVERY_BYTE = bytes(range(256)) * 1000
ODD_KEYS = ["plain", "p/q/r.parquet", "p/with space", "p/ümläut", "p/a+b=@c", "p/a%20b", "p/x#y?z&w", "p/~tilde*star"]


@pytest.fixture(params=["memory", "local", "s3", "observed", "faulty", "faulty, settled"])
def blob(request: pytest.FixtureRequest, tmp_path: Path, settings: Settings) -> Blob:
    if request.param == "memory":
        return MemoryBlob()
    if request.param == "local":
        return LocalBlob(tmp_path)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return S3Blob(server.bucket, f"storage/{SystemRuntime().new_id()}", **server.options)
    if request.param == "observed":
        return ObservedBlob(LocalBlob(tmp_path), Observer(), SystemRuntime())
    if request.param == "faulty":
        return FaultyBlob(LocalBlob(tmp_path), Faults.none())
    runtime = ManualRuntime(seed=7)
    return SettledBlob(FaultyBlob(LocalBlob(tmp_path), Faults.seeded(runtime, 0.3)), runtime, settings)


def keys(blob: Blob, prefix: str) -> list[str]:
    return [entry.key for entry in blob.list(prefix)]


@pytest.mark.parametrize("data", [b"", b"x", EVERY_BYTE], ids=["empty", "one byte", "every byte"])
def test_rule_1_and_3_a_blob_is_read_back_whole(blob: Blob, data: bytes) -> None:
    blob.put("parts/s/w-1.parquet", data)
    assert blob.get("parts/s/w-1.parquet") == data
    assert [(entry.key, entry.bytes) for entry in blob.list("parts/")] == [("parts/s/w-1.parquet", len(data))]


def test_rule_1_a_reader_never_sees_a_part(blob: Blob) -> None:
    """S3 is tested without listings: rclone, unlike S3, lists an object that it is still receiving."""
    sizes: set[int] = set()
    done = threading.Event()

    def read() -> None:
        for number in range(20):
            with suppress(BlobMissing):
                sizes.add(len(blob.get(f"p/{number}")))
        if not isinstance(blob, S3Blob):
            sizes.update(entry.bytes for entry in blob.list("p/"))

    def work(thread: int) -> None:
        if thread:
            while not done.is_set():
                read()
            return
        try:
            for number in range(20):
                blob.put(f"p/{number}", EVERY_BYTE)
        finally:
            done.set()

    assert together(2, work) == [None] * 2
    read()
    assert sizes == {len(EVERY_BYTE)}


def test_rule_2_a_put_of_the_same_bytes_again_succeeds(blob: Blob) -> None:
    blob.put("p/a", b"first")
    blob.put("p/a", b"first")
    assert blob.get("p/a") == b"first"
    assert keys(blob, "") == ["p/a"]


@pytest.mark.parametrize("other", [b"other", b"", b"longer than first"])
def test_rule_2_a_put_of_other_bytes_is_refused_and_the_first_stay(blob: Blob, other: bytes) -> None:
    blob.put("p/a", b"first")
    with pytest.raises(Conflict) as caught:
        blob.put("p/a", other)
    assert caught.value.where == blob.path("p/a")
    assert blob.get("p/a") == b"first"
    assert list(blob.list_unfinished("")) == []


def test_rule_2_and_8_threads_that_put_the_same_key(blob: Blob) -> None:
    """Same bytes: all puts succeed. Other bytes: exactly one put wins, and the others fail."""
    assert together(8, lambda _: blob.put("p/same", EVERY_BYTE)) == [None] * 8
    assert blob.get("p/same") == EVERY_BYTE

    errors = together(8, lambda number: blob.put("p/other", b"%d" % number * 5000))
    winners = [number for number, error in enumerate(errors) if error is None]
    assert len(winners) == 1
    assert all(isinstance(error, Conflict) for error in errors if error is not None)
    assert blob.get("p/other") == b"%d" % winners[0] * 5000
    assert list(blob.list_unfinished("")) == []


def test_rule_3_a_missing_blob_is_named(blob: Blob) -> None:
    blob.put("p/a", b"")
    for key in ("nothing", "p/nothing", "p/a/below a blob", "q/nothing", "p"):
        with pytest.raises(BlobMissing) as caught:
            blob.get(key)
        assert caught.value.path == blob.path(key)


@pytest.mark.parametrize("data", [b"", b"x", EVERY_BYTE], ids=["empty", "one byte", "every byte"])
def test_rule_3_a_range_is_the_slice_of_all_bytes(blob: Blob, data: bytes) -> None:
    """A range that begins or ends past the end returns only the bytes that exist."""
    blob.put("p/a", data)
    size = len(data)
    for offset in {0, 1, size // 3, max(0, size - 5), max(0, size - 1), size, size + 1, 2 * size + 7}:
        for length in (0, 1, 4, 70_000, size, size + 1, 1 << 33):
            assert blob.get_range("p/a", offset, length) == data[offset : offset + length], (offset, length)


def test_rule_3_a_range_of_a_missing_blob_is_named(blob: Blob) -> None:
    blob.put("p/a", b"1")
    for key in ("nothing", "p/nothing", "p/a/below a blob", "q/nothing", "p"):
        for length in (0, 3):
            with pytest.raises(BlobMissing) as caught:
                blob.get_range(key, 0, length)
            assert caught.value.path == blob.path(key)


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (-2, -2)])
def test_negative_ranges_are_refused(blob: Blob, offset: int, length: int) -> None:
    blob.put("p/a", b"123")
    with pytest.raises(Unexpected):
        blob.get_range("p/a", offset, length)


def test_rule_4_delete(blob: Blob) -> None:
    blob.put("p/a", b"1")
    blob.put("p/b", b"2")
    assert blob.delete("p/a") is True
    assert blob.delete("p/a") is False
    assert blob.delete("never/there") is False
    assert keys(blob, "") == ["p/b"]
    with pytest.raises(BlobMissing):
        blob.get("p/a")
    blob.put("p/a", b"again")
    assert blob.get("p/a") == b"again"


def test_rule_5_list_in_key_order_below_whole_names(blob: Blob) -> None:
    """A directory's keys sort as if `/` were a character like any other, on every storage."""
    names = ["a", "a-1/x", "a.b", "a/b", "a/b.c", "a0/x", "b/c/d/e", "b/c-d", "é/x", "Z"]
    for name in names:
        blob.put(f"parts/{name}x" if name == "a" else f"parts/{name}", b"")
    expected = sorted(f"parts/{name}x" if name == "a" else f"parts/{name}" for name in names)
    assert keys(blob, "") == expected
    assert keys(blob, "parts") == keys(blob, "parts/") == expected
    assert keys(blob, "parts/a/") == keys(blob, "parts/a") == ["parts/a/b", "parts/a/b.c"]
    assert keys(blob, "parts/b/") == ["parts/b/c-d", "parts/b/c/d/e"]
    assert keys(blob, "par") == []
    assert keys(blob, "nothing/there") == []


def test_rule_6_nothing_is_unfinished_after_puts_that_ended(blob: Blob) -> None:
    blob.put("p/a", b"1")
    blob.delete("p/a")
    blob.put("p/b", b"1")
    assert list(blob.list_unfinished("")) == []
    assert list(blob.list_unfinished("p/")) == []


def test_rule_8_many_threads(blob: Blob) -> None:
    """Puts are retried, as callers do: rclone sometimes answers 500 when two requests create one directory."""

    def work(number: int) -> None:
        for step in range(5):
            key = f"p/{number % 4}/{number}-{step}"
            retry(partial(blob.put, key, key.encode()))
            assert blob.get(key) == key.encode()
            if step % 2:
                assert blob.delete(key)

    assert together(8, work) == [None] * 8
    assert keys(blob, "p/") == sorted(f"p/{n % 4}/{n}-{step}" for n in range(8) for step in (0, 2, 4))


def test_rule_8_a_pickled_blob_opens_the_same_storage(blob: Blob) -> None:
    if not isinstance(blob, LocalBlob | S3Blob):
        pytest.skip("no other process can open this storage")
    blob.put("p/a", b"1")
    copy = pickle.loads(pickle.dumps(blob))
    assert copy.get("p/a") == b"1"
    copy.put("p/b", b"2")
    assert blob.get("p/b") == b"2"
    assert repr(copy) == repr(blob)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_keys_with_special_characters_are_stored_unchanged(blob: Blob, key: str) -> None:
    blob.put(key, key.encode())
    assert blob.get(key) == key.encode()
    assert keys(blob, "") == [key]
    assert blob.delete(key)
    assert keys(blob, "") == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/absolute",
        "a//b",
        "a/",
        "..",
        "a/../b",
        "../b",
        ".",
        "a/./b",
        "a\0b",
        "a\nb",
        "a/b.tmp",
        "meta.db",
        "meta.db-wal",
    ],
)
def test_keys_that_could_leave_the_root_or_clash_are_refused(blob: Blob, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: blob.get(key),
        lambda: blob.get_range(key, 0, 1),
        lambda: blob.put(key, b""),
        lambda: blob.delete(key),
    ]
    for call in calls:
        with pytest.raises(Unexpected):
            call()
    assert keys(blob, "") == []


@pytest.mark.parametrize("prefix", ["/", "/a", "a//b", "..", "a/../b"])
def test_prefixes_that_could_leave_the_root_are_refused(blob: Blob, prefix: str) -> None:
    with pytest.raises(InvalidInput):
        list(blob.list(prefix))
    with pytest.raises(InvalidInput):
        list(blob.list_unfinished(prefix))
