"""`open_storage`: a storage is created once, opened by many processes, and never silently created again."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from evertide.errors import InvalidInput, OutcomeUnknown, RecordDamaged, Unavailable, UnsupportedFormat
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import (
    FORMAT_VERSION,
    BlobEntry,
    LocalBlob,
    MemoryBlob,
    MemoryMeta,
    PostgresMeta,
    Record,
    S3Blob,
    SqliteMeta,
    Storage,
    Write,
    open_storage,
)
from evertide.store.open import _check_meta, _has_been_created
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server
from tests.store.race import together

Opener = Callable[..., Storage]


@pytest.fixture
def reopen(runtime: SystemRuntime, settings: Settings) -> Opener:
    def open_location(location: str | Path, meta: str | None = None) -> Storage:
        return open_storage(location, meta, runtime=runtime, settings=settings)

    return open_location


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shop.evertide"


@pytest.fixture
def existing(root: Path, reopen: Opener) -> Path:
    """A storage with a blob and a record."""
    storage = reopen(root)
    storage.blob.put("parts/s/w-1.parquet", b"part")
    assert storage.meta.commit([Write("shard/s", 0, b"state")]) is None
    storage.close()
    return root


def test_a_new_storage(root: Path, reopen: Opener) -> None:
    storage = reopen(str(root))
    assert storage.root == str(root)
    assert isinstance(storage.blob, LocalBlob)
    assert isinstance(storage.meta, SqliteMeta)
    assert (root / "FORMAT").read_bytes() == b"1\n"
    assert FORMAT_VERSION == 1
    assert (root / "meta.db").exists()
    assert [entry.key for entry in storage.blob.list("")] == ["FORMAT"]
    storage.close()


def test_a_new_storage_is_closed_to_other_users_until_its_owner_opens_it(root: Path, reopen: Opener) -> None:
    before = os.umask(0o022)
    try:
        reopen(root).close()
        assert root.stat().st_mode & 0o777 == 0o700
        root.chmod(0o750)
        reopen(root).close()
        assert root.stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(before)


def test_a_storage_that_is_opened_again_has_the_same_content(existing: Path, reopen: Opener) -> None:
    for _ in range(2):
        storage = reopen(existing)
        assert storage.blob.get("parts/s/w-1.parquet") == b"part"
        assert storage.meta.heads("shard/").keys() == {"shard/s"}
        storage.close()


def test_an_existing_empty_directory_is_used(root: Path, reopen: Opener) -> None:
    root.mkdir()
    reopen(root).close()
    assert (root / "FORMAT").exists()


def test_a_relative_location(root: Path, reopen: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    storage = reopen(root.name)
    monkeypatch.chdir("/")
    storage.blob.put("a", b"1")
    assert storage.root == str(root)
    assert (root / "a").exists()
    storage.close()


def test_several_processes_create_the_storage_at_the_same_time(root: Path, reopen: Opener) -> None:
    """A process that sees a storage that another is creating neither reports damage nor creates a second one."""
    for attempt in range(10):
        opened: list[Storage] = []

        def work(number: int, name: str = f"{attempt}", opened: list[Storage] = opened) -> None:
            storage = reopen(root.with_name(name))
            opened.append(storage)
            storage.blob.put(f"parts/{number}", b"1")
            assert storage.meta.commit([Write(f"shard/{number}", 0, b"1")]) is None

        assert together(5, work) == [None] * 5
        assert len(opened[0].meta.heads("shard/")) == 5
        for storage in opened:
            storage.close()


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("fault", [Fault.DONE_LOST, Fault.LOST, Fault.REFUSED])
def test_an_interrupted_creation_continues(steps: int, fault: Fault) -> None:
    """After any of three steps, however it ended, opening the storage again completes the creation."""
    blob, meta = MemoryBlob(), MemoryMeta()
    faults = Faults.scripted(writes=[Fault.DONE] * steps + [fault])
    faulty_blob, faulty_meta = FaultyBlob(blob, faults), FaultyMeta(meta, faults)
    if steps < 3:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            _check_meta(faulty_blob, faulty_meta, exists=_has_been_created(faulty_blob))
    _check_meta(blob, meta, exists=_has_been_created(blob))
    assert blob.get("FORMAT") == b"1\n"
    head = meta.head("storage")
    assert head is not None
    assert head.seqno == 2
    _check_meta(blob, meta, exists=_has_been_created(blob))
    assert meta.head("storage") == head


def test_another_process_creates_the_storage_between_two_reads() -> None:
    """First no FORMAT, then blobs, or no record, then records: another process was faster, and nothing is lost."""
    blob, meta = MemoryBlob(), MemoryMeta()

    def make() -> None:
        _check_meta(blob, meta, exists=_has_been_created(blob))
        blob.put("parts/a", b"1")
        meta.commit([Write("shard/s", 0, b"1")])

    class QuickerBlob(FaultyBlob):
        def list(self, prefix: str) -> Iterator[BlobEntry]:
            make()
            return super().list(prefix)

    class QuickerMeta(FaultyMeta):
        def heads(self, prefix: str) -> dict[str, Record]:
            make()
            return super().heads(prefix)

    assert _has_been_created(QuickerBlob(blob, Faults.none())) is False
    blob, meta = MemoryBlob(), MemoryMeta()
    _check_meta(blob, QuickerMeta(meta, Faults.none()), exists=False)
    head = meta.head("storage")
    assert head is not None
    assert head.seqno == 2


def lose_format(root: Path) -> None:
    (root / "FORMAT").unlink()


def lose_format_of_an_empty_storage(root: Path) -> None:
    lose_format(root)
    (root / "parts/s/w-1.parquet").unlink()
    forget(root, "key <> 'storage'")


def lose_format_and_meta(root: Path) -> None:
    lose_format(root)
    (root / "meta.db").unlink()


def lose_format_and_the_record_of_it(root: Path) -> None:
    lose_format(root)
    (root / "parts/s/w-1.parquet").unlink()
    forget(root, "key = 'storage'")


def lose_meta(root: Path) -> None:
    (root / "meta.db").unlink()


def lose_meta_of_a_storage_without_parts(root: Path) -> None:
    lose_meta(root)
    (root / "parts/s/w-1.parquet").unlink()


def empty_meta(root: Path) -> None:
    os.truncate(root / "meta.db", 0)


def forget_all(root: Path) -> None:
    forget(root, "true")


def forget(root: Path, condition: str) -> None:
    raw = sqlite3.connect(root / "meta.db", isolation_level=None)
    raw.execute(f"DELETE FROM log WHERE {condition}")
    raw.close()


@pytest.mark.parametrize(
    ("loss", "file", "why"),
    [
        (lose_format, "FORMAT", "FORMAT is missing"),
        (lose_format_of_an_empty_storage, "FORMAT", "FORMAT is missing"),
        (lose_format_and_meta, "FORMAT", "FORMAT is missing"),
        (lose_format_and_the_record_of_it, "FORMAT", "FORMAT is missing"),
        (lose_meta, "meta.db", "missing or empty"),
        (lose_meta_of_a_storage_without_parts, "meta.db", "missing or empty"),
        (empty_meta, "meta.db", "missing or empty"),
        (forget_all, "meta.db:storage", "Meta has no record of this storage"),
    ],
)
def test_a_loss_is_never_a_fresh_start(
    existing: Path, reopen: Opener, loss: Callable[[Path], None], file: str, why: str
) -> None:
    loss(existing)
    before = {path: path.stat().st_size for path in existing.rglob("*")}
    for _ in range(2):
        with pytest.raises(RecordDamaged, match="backup") as caught:
            reopen(existing)
        assert caught.value.path == str(existing / file)
        assert why in caught.value.why
    assert {path: path.stat().st_size for path in existing.rglob("*")} == before


@pytest.mark.parametrize("text", [b"", b"1", b"one\n", b"0\n", b"-1\n", b"1\n1\n", b"\x80\xff\n", b" 1\n", b"1\r\n"])
def test_a_garbled_format_is_damage(existing: Path, reopen: Opener, text: bytes) -> None:
    (existing / "FORMAT").write_bytes(text)
    with pytest.raises(RecordDamaged) as caught:
        reopen(existing)
    assert caught.value.path == str(existing / "FORMAT")


def test_a_newer_format_is_refused_before_anything_else(existing: Path, reopen: Opener) -> None:
    (existing / "FORMAT").write_bytes(b"2\n")
    (existing / "meta.db").write_bytes(b"whatever the future stores here")
    with pytest.raises(UnsupportedFormat) as caught:
        reopen(existing)
    assert (caught.value.path, caught.value.found, caught.value.supported) == (str(existing / "FORMAT"), 2, 1)
    assert (existing / "meta.db").read_bytes() == b"whatever the future stores here"


def test_a_damaged_meta_is_named(existing: Path, reopen: Opener) -> None:
    (existing / "meta.db").write_bytes(os.urandom(8192))
    with pytest.raises(RecordDamaged) as caught:
        reopen(existing)
    assert caught.value.path == str(existing / "meta.db")


def test_locations_that_cannot_be_a_storage_are_refused(root: Path, reopen: Opener) -> None:
    root.write_bytes(b"a file")
    cases: list[tuple[str | Path, str | None, str]] = [
        (root, None, "found a file"),
        (root / "below", None, "does not exist"),
        (root.parent / "no" / "parent", None, "does not exist"),
        ("gs://bucket/prefix", None, "a directory or s3"),
        ("s3://bucket/prefix", None, "needs Meta in PostgreSQL"),
        ("s3:///prefix", "postgresql://localhost/db", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "postgresql://localhost/db", "s3://bucket/prefix"),
        (root.parent / "new", "mysql://localhost/db", "postgresql://"),
        (root.parent / "new", "other.db", "postgresql://"),
    ]
    for location, meta, why in cases:
        with pytest.raises(InvalidInput) as caught:
            reopen(location, meta)
        assert why in caught.value.why
        assert "secret" not in str(caught.value)
    assert not (root.parent / "new").exists()


@pytest.fixture
def databases(postgres_server: PostgresServer, runtime: SystemRuntime) -> tuple[str, str]:
    """The URLs of two new databases."""
    names = [f"db_{runtime.new_id()}" for _ in range(2)]
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE DATABASE {name}".encode())
    first, second = (postgres_server.dsn.replace("/postgres?", f"/{name}?") for name in names)
    return first, second


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, runtime: SystemRuntime) -> str:
    """The URL of a new place on S3, with the credentials in the environment."""
    for name, value in s3_server.options.items():
        monkeypatch.setenv(f"AWS_{name}".upper(), value)
    return f"s3://{s3_server.bucket}/open/{runtime.new_id()}"


def test_s3_with_postgres(bucket: str, databases: tuple[str, str], reopen: Opener) -> None:
    for attempt in range(2):
        storage = reopen(bucket, databases[0])
        assert isinstance(storage.blob, S3Blob)
        assert isinstance(storage.meta, PostgresMeta)
        assert storage.root == bucket
        assert storage.blob.get("FORMAT") == b"1\n"
        assert storage.meta.commit([Write("k", attempt, b"1")]) is None
        storage.close()


def test_blobs_and_meta_of_different_storages_are_refused(
    bucket: str, databases: tuple[str, str], existing: Path, reopen: Opener
) -> None:
    """The likeliest mistake: a URL with the wrong database, bucket or prefix."""
    reopen(bucket, databases[0]).close()
    with pytest.raises(RecordDamaged, match="has no record of this storage"):
        reopen(bucket, databases[1])
    with pytest.raises(RecordDamaged, match="FORMAT is missing"):
        reopen(f"{bucket}-other", databases[0])
    with pytest.raises(RecordDamaged, match="has no record of this storage"):
        reopen(existing, databases[1])
    reopen(bucket, databases[0]).close()


def test_a_local_storage_with_postgres_is_not_opened_without_postgres(
    root: Path, databases: tuple[str, str], reopen: Opener
) -> None:
    reopen(root, databases[0]).close()
    assert not (root / "meta.db").exists()
    with pytest.raises(RecordDamaged, match="if Meta is in PostgreSQL"):
        reopen(root)
    assert not (root / "meta.db").exists()
