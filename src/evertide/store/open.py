"""`open_storage`: open a `Blob` and a `Meta` that belong together, and check both before use.

    <root>/FORMAT     a blob: the format version, decimal, and a newline
    storage           a Meta key: record 1 is committed before FORMAT is put, record 2 after

Invariants:

1. A loss is never mistaken for a new storage. A storage is created in three steps: record 1, FORMAT, record 2. A
   creation that was interrupted continues. FORMAT without record 1 means that Meta is lost or belongs to another
   storage; record 2 without FORMAT means that FORMAT is lost. Both are `RecordDamaged`.
2. A newer format is refused before Meta is opened, because its layout is unknown.
3. Several processes may open, and even create, one storage at the same moment. What looks like a loss is read once
   more, in the order that rules out a concurrent creation.

`open_for_repair` opens what these rules refuse, for `evertide.checkpoint.fsck` and `evertide.checkpoint.repair`.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from evertide.errors import BlobMissing, InvalidInput, RecordDamaged, UnsupportedFormat
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.blobs.file_system import SystemFiles
from evertide.store.blobs.local import LocalBlob, convert_os_error
from evertide.store.blobs.s3 import S3Blob
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Meta, Write
from evertide.store.metas.postgres import PostgresMeta
from evertide.store.metas.sqlite import SqliteMeta
from evertide.store.paths import FORMAT, META_FILE, STORAGE
from evertide.store.retry import retry_read

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

FORMAT_TEXT = b"%d\n" % FORMAT_VERSION
_VALID_FORMAT = re.compile(rb"[1-9][0-9]{0,8}\n")
_POSTGRES = ("postgresql://", "postgres://")
_READ_BYTES = 1 << 20
_OWNER_ONLY = 0o700
"""The storage holds rows in plain form. An administrator may open the directory to others; new files follow its mode.
"""


@dataclass(frozen=True, slots=True)
class StorageAddress:
    location: str
    meta: str | None = field(default=None, repr=False)
    """It may contain a password."""

    @property
    def is_remote(self) -> bool:
        return self.meta is not None or self.location.startswith("s3://")


@dataclass(frozen=True, slots=True)
class Storage:
    """`root` is the location for messages: a directory or an S3 URL."""

    blob: Blob
    meta: Meta
    root: str
    address: StorageAddress | None = None
    """None if the storage is in this process's memory."""

    def close(self) -> None:
        self.meta.close()


def open_storage(location: str | Path, meta: str | None = None, *, runtime: Runtime, settings: Settings) -> Storage:
    """Open the storage at a directory or `s3://bucket/prefix`, or create it if the place is empty.

    `meta` is a PostgreSQL URL; without one, Meta is the SQLite file `meta.db` in the directory.
    """
    blob, root = _open_blob(location, meta)
    exists = retry_read(lambda: _has_been_created(blob), runtime, settings)
    opened = (
        PostgresMeta(meta, runtime, settings) if meta else _open_sqlite(Path(root), runtime, settings, exists=exists)
    )
    try:
        retry_read(lambda: _check_meta(blob, opened, exists=exists), runtime, settings)  # creating it is idempotent
    except BaseException:
        opened.close()
        raise
    return Storage(blob, opened, root, StorageAddress(root, meta))


def open_for_repair(
    location: str | Path, meta: str | None = None, *, runtime: Runtime, settings: Settings, change: bool
) -> Storage:
    """Open a storage that may be damaged or empty; check only that its format is not newer.

    If `meta.db` is missing, or SQLite cannot read all of it: without `change`, use an empty Meta in memory; with
    `change`, move its files below `lost+found/` and create an empty one.
    """
    blob, root = _open_blob(location, meta)
    with suppress(RecordDamaged):  # fsck reports damage of FORMAT
        _has_format(blob)
    if meta:
        return Storage(blob, PostgresMeta(meta, runtime, settings), root)
    return Storage(blob, _sqlite_for_repair(Path(root), runtime, settings, change=change), root)


def _sqlite_for_repair(root: Path, runtime: Runtime, settings: Settings, *, change: bool) -> Meta:
    path = root / META_FILE
    if not retry_read(lambda: _has_content(path), runtime, settings):
        if not change:
            return MemoryMeta(runtime)
        _set_aside(root, runtime.new_id())  # SQLite would apply a write-ahead log that is left to the new file
        return SqliteMeta(path, runtime, settings)
    try:
        return _open_all(path, runtime, settings)
    except RecordDamaged as error:
        logger.warning("%s cannot be read: %s", path, error)
    _check_readable(root)  # SQLite also reports a temporary read error of the disk as damage
    try:
        return _open_all(path, runtime, settings)
    except RecordDamaged:
        if not change:
            return MemoryMeta(runtime)
        _set_aside(root, runtime.new_id())
        return SqliteMeta(path, runtime, settings)


def _open_all(path: Path, runtime: Runtime, settings: Settings) -> SqliteMeta:
    """Open the file and read every record; raise `RecordDamaged` if one cannot be read."""
    opened = SqliteMeta(path, runtime, settings)
    try:
        for key in opened.heads(""):
            opened.scan(key)
    except BaseException:
        opened.close()
        raise
    return opened


def _check_readable(root: Path) -> None:
    """Raise `Unavailable` if the disk cannot read all bytes of `meta.db`. SQLite must not have the file open."""
    for suffix in ("", "-wal"):
        path = root / f"{META_FILE}{suffix}"
        try:
            with path.open("rb", buffering=0) as file:
                while file.read(_READ_BYTES):
                    pass
        except FileNotFoundError:
            continue
        except OSError as error:
            raise convert_os_error(path, error) from error


def _set_aside(root: Path, name: str) -> None:
    """Move the files of `meta.db` below `lost+found/`, under a name that no other repair uses.

    The database moves first, and durably: without its write-ahead log it would open with an older content.
    """
    lost, files = root / "lost+found", SystemFiles()
    try:
        for suffix in ("", "-wal", "-shm"):
            path = root / f"{META_FILE}{suffix}"
            if path.exists():
                lost.mkdir(exist_ok=True)
                files.rename(path, lost / f"{META_FILE}{suffix}.{name}")
                files.sync_directory(lost)
                files.sync_directory(root)
    except OSError as error:
        raise convert_os_error(root, error) from error


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise convert_os_error(path, error) from error


def _open_blob(location: str | Path, meta: str | None) -> tuple[Blob, str]:
    if meta is not None and not meta.startswith(_POSTGRES):
        raise InvalidInput(where="meta", why="expected a URL that starts with postgresql://")
    if str(location).startswith("s3://"):
        if meta is None:
            raise InvalidInput(where=str(location), why="a storage on S3 needs Meta in PostgreSQL; set meta to its URL")
        return _open_s3(str(location))
    return _open_local(location)


def _open_s3(location: str) -> tuple[Blob, str]:
    parts = urlsplit(location)
    if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(where="location", why="expected s3://bucket/prefix; credentials come from the environment")
    return S3Blob(parts.netloc, parts.path), f"s3://{parts.netloc}{parts.path}"


def _open_local(location: str | Path) -> tuple[Blob, str]:
    if "://" in str(location):
        raise InvalidInput(where=str(location), why="expected a directory or s3://bucket/prefix")
    root = Path(location).absolute()
    try:
        if root.exists() and not root.is_dir():
            raise InvalidInput(where=str(root), why="expected a directory, found a file")
        if not root.parent.is_dir():
            raise InvalidInput(where=str(root), why="the parent directory does not exist; create it")
        blob, is_new = LocalBlob(root), not root.exists()
        blob.make_root()
        if is_new:
            root.chmod(_OWNER_ONLY)
    except OSError as error:
        raise convert_os_error(root, error) from error
    return blob, str(root)


def _open_sqlite(root: Path, runtime: Runtime, settings: Settings, *, exists: bool) -> SqliteMeta:
    path = root / META_FILE
    if exists and not retry_read(lambda: _has_content(path), runtime, settings):
        why = f"the file is missing or empty, although {FORMAT} exists; if Meta is in PostgreSQL, set meta to its URL"
        raise RecordDamaged(path=str(path), why=why)
    return retry_read(lambda: SqliteMeta(path, runtime, settings), runtime, settings)


def _has_been_created(blob: Blob) -> bool:
    """Whether FORMAT exists and is supported. Blobs without FORMAT are a loss: they are put only after it (3)."""
    if _has_format(blob):
        return True
    if any(entry.key != FORMAT for entry in blob.list("")) and not _has_format(blob):
        raise RecordDamaged(path=blob.path(FORMAT), why="FORMAT is missing, but other blobs exist")
    return False


def _has_format(blob: Blob) -> bool:
    try:
        text = blob.get(FORMAT)
    except BlobMissing:
        return False
    if not _VALID_FORMAT.fullmatch(text):
        raise RecordDamaged(path=blob.path(FORMAT), why=f"expected a version, found {text[:32]!r}")
    if int(text) > FORMAT_VERSION:
        raise UnsupportedFormat(path=blob.path(FORMAT), found=int(text), supported=FORMAT_VERSION)
    return True


def _check_meta(blob: Blob, meta: Meta, *, exists: bool) -> None:
    number = _read_number(meta)
    if exists and number == 0:
        why = f"Meta has no record of this storage, but {FORMAT} exists: Meta was lost, or belongs to another storage"
        raise RecordDamaged(path=meta.path(STORAGE), why=why)
    if number == 0 and meta.heads("") and _read_number(meta) == 0:
        raise RecordDamaged(path=blob.path(FORMAT), why="FORMAT is missing, but Meta has records")
    if not exists and number >= 2 and not _has_format(blob):
        raise RecordDamaged(path=blob.path(FORMAT), why="FORMAT is missing, but Meta records that it was written")
    if number < 2:
        _create_records(blob, meta)


def _create_records(blob: Blob, meta: Meta) -> None:
    """Create the records and FORMAT. A concurrent process writes the same values, so losing the race is harmless."""
    meta.commit([Write(STORAGE, 0, FORMAT_TEXT)])
    blob.put(FORMAT, FORMAT_TEXT)
    meta.commit([Write(STORAGE, 1, FORMAT_TEXT)])


def _read_number(meta: Meta) -> int:
    head = meta.head(STORAGE)
    return head.seqno if head else 0
