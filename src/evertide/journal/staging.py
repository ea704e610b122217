"""Staged rows: input that its source cannot send again, stored durably before a transaction names it.

Stored as blobs `journal/<source>/<writer>-<seq>.arrow`: an Arrow IPC stream of the columns as given, compressed with
lz4. Version 1, in the schema's metadata as `evertide.format`. The process that owns the source stages; truncation and
`drop_unbound` (`evertide.journal.garbage`) delete. A few rows whose client waits for the bind need no blob: they are
stored in the record that binds them (`Staged.inline`), and are lost if the process ends before.

1. The `Staged` that names a blob has its length and XXH3-128. Both are checked before the blob is decoded.
2. Between stage and bind no record names the blob. Its sequence number stays open with the writer, and garbage
   collection does not delete it, until a record names it (`settle`) or it is given up (`drop`). Only an open fragment
   can be bound; otherwise a record could name a deleted blob.
3. A bind with unknown outcome may still arrive. The blobs that it names are neither settled nor dropped until the log
   has a record with that number (`unknown_bind`).

The writer knows which sequence numbers are open; this object knows which binds have an unknown outcome. So a process
has one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from evertide.errors import BlobDamaged, BlobMissing, EvertideError, Unavailable, Unexpected, UnsupportedFormat
from evertide.journal.records import Bound, Staged
from evertide.journal.time_log import TimeLog
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.paths import Name, check_source, staged_key, staged_prefix
from evertide.store.retry import put_until_known, retry_read
from evertide.store.writers import Writer

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

_FORMAT_KEY = b"evertide.format"
_SUFFIX = "arrow"
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
_SMALL_BYTES = 1 << 20
_SMALL_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_SMALL_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""Threads cost more than they gain for a few rows."""


def never_inline(_size: int) -> bool:
    return False


def list_staged(bound: Bound) -> list[Staged]:
    inputs = bound.inputs.values()
    return [fragment for source in inputs for fragment in source.fragments if isinstance(fragment, Staged)]


def parse_source(key: str) -> str:
    return key.removeprefix(staged_prefix()).partition("/")[0]


def settle_named(records: Iterable[Bound], writer: Writer) -> None:
    for record in records:
        for fragment in list_staged(record):
            name = Name.parse(fragment.key)
            if name is not None and name.writer == writer.id:
                writer.settle(name.seq)


@dataclass(frozen=True, slots=True, eq=False)
class _UnknownBind:
    """A bind that may have happened: the number that its record would have, and the blobs that it names."""

    number: int
    keys: frozenset[str]


class StagingArea:
    """The fragments that this process has staged and not bound. The journal never runs `drop` during a bind."""

    def __init__(self, blob: Blob, bound: TimeLog[Bound], runtime: Runtime, settings: Settings) -> None:
        self._blob = blob
        self._bound = bound
        self._runtime = runtime
        self._settings = settings
        self._unknown_binds: list[_UnknownBind] = []

    def stage(
        self, source: str, table: str, rows: pa.Table, writer: Writer, is_inline: Callable[[int], bool]
    ) -> Staged:
        check_source(source)
        content = _encode(rows)
        inline = content if is_inline(len(content)) else b""
        seq = writer.open_claim()
        key = staged_key(source, Name(writer.id, seq, _SUFFIX))
        try:
            if not inline:
                put_until_known(self._blob, key, content, self._runtime, self._settings)
        except EvertideError:
            writer.settle(seq)  # even if the blob exists: its key is lost, so no record will ever name it
            raise
        return Staged(table, key, rows.num_rows, len(content), xxhash.xxh3_128_hexdigest(content), inline)

    def load(self, staged: Staged, time: int | None) -> pa.Table:
        path = self._blob.path(staged.key)
        content_text = _describe(staged, time)
        try:
            content = staged.inline or retry_read(lambda: self._blob.get(staged.key), self._runtime, self._settings)
        except BlobMissing as error:
            raise BlobMissing(path=path, why=f"it stored {content_text}: {error.why}") from error
        found = xxhash.xxh3_128_hexdigest(content)
        if len(content) != staged.bytes or found != staged.checksum:
            why = f"it stored {content_text}: {staged.bytes} bytes were stored, {len(content)} are left"
            if len(content) == staged.bytes:
                why = f"it stored {content_text}: the checksum does not match the content"
            raise BlobDamaged(path=path, why=why, expected=staged.checksum, found=found)
        return _decode(content, staged, path, content_text)

    def check_open(self, source: str, fragments: Iterable[Staged], writer: Writer) -> None:
        """Raise an error for a fragment that garbage collection may have deleted (2)."""
        for fragment in fragments:
            name = Name.parse(fragment.key)
            if parse_source(fragment.key) != source:
                raise Unexpected(where="Journal.bind", why=f"{fragment.key} was not staged by source {source!r}")
            if name is None or name.writer != writer.id:
                raise Unexpected(where="Journal.bind", why=f"{fragment.key} was not staged by writer {writer.id}")
            if not writer.is_open(name.seq):
                raise Unexpected(where="Journal.bind", why=f"{fragment.key} is already bound, or was dropped")

    @contextmanager
    def unknown_bind(self, number: int, bound: Bound) -> Iterator[None]:
        """Surrounds the commit of a record. If the outcome stays unknown, the bind stays listed (3)."""
        unknown = _UnknownBind(number, frozenset(fragment.key for fragment in list_staged(bound)))
        self._unknown_binds.append(unknown)
        try:
            yield
        except Unavailable:
            self._unknown_binds.remove(unknown)
            raise
        self._unknown_binds.remove(unknown)

    def end_unknown_binds(self, writer: Writer) -> None:
        """End the unknown binds whose record number the log has reached: that record is ours, or ours can no longer
        arrive."""
        head = self._bound.head() if self._unknown_binds else None
        over = [bind for bind in self._unknown_binds if head is not None and bind.number <= head.number]
        if over:
            settle_named((record.value for record in self._bound.iterate()), writer)
            self._unknown_binds = [bind for bind in self._unknown_binds if bind not in over]

    def may_be_bound(self, fragments: Iterable[Staged], writer: Writer) -> bool:
        """See `Journal.may_be_bound`: a bind of unknown outcome names a fragment, or a bind named it and is settled."""
        unknown = self._keys_of_unknown_binds()
        names = [(fragment.key, Name.parse(fragment.key)) for fragment in fragments]
        return any(key in unknown or (name is not None and not writer.is_open(name.seq)) for key, name in names)

    def _keys_of_unknown_binds(self) -> frozenset[str]:
        return frozenset(key for bind in self._unknown_binds for key in bind.keys)

    def drop(self, fragments: Iterable[Staged], writer: Writer) -> list[str]:
        self.end_unknown_binds(writer)
        unknown = self._keys_of_unknown_binds()
        dropped = []
        for fragment in fragments:
            name = Name.parse(fragment.key)
            if name is None or name.writer != writer.id or not writer.is_open(name.seq):
                continue
            if fragment.key in unknown:
                logger.warning("keeping rows that a bind of unknown outcome names: %s", self._blob.path(fragment.key))
                continue
            writer.settle(name.seq)  # first, so that it can no longer be bound
            if not fragment.has_blob:
                continue
            dropped.append(fragment.key)
            try:
                self._blob.delete(fragment.key)
            except EvertideError as error:
                logger.warning("could not delete a dropped fragment, garbage collection will: %s", error)
        return dropped


def _describe(staged: Staged, time: int | None) -> str:
    bound = "not bound yet" if time is None else f"bound in transaction {time}"
    return f"{staged.rows} rows of table {staged.table!r} from source {parse_source(staged.key)!r}, {bound}"


def _encode(rows: pa.Table) -> bytes:
    marked = rows.replace_schema_metadata({**(rows.schema.metadata or {}), _FORMAT_KEY: str(FORMAT_VERSION).encode()})
    sink = pa.BufferOutputStream()
    options = _SMALL_LZ4 if marked.nbytes < _SMALL_BYTES else _LZ4
    with pa.ipc.new_stream(sink, marked.schema, options=options) as stream:
        stream.write_table(marked)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _decode(content: bytes, staged: Staged, path: str, content_text: str) -> pa.Table:
    try:
        options = _SMALL_READ if len(content) < _SMALL_BYTES else None
        with pa.ipc.open_stream(content, options=options) as stream:
            metadata = dict(stream.schema.metadata or {})
            _check_version(metadata.pop(_FORMAT_KEY, b""), path)
            rows = stream.read_all().replace_schema_metadata(metadata or None)
    except MemoryError:  # an exception of Arrow, too, and no damage
        raise
    except pa.ArrowException as error:
        raise BlobDamaged(path=path, why=f"it stored {content_text} and cannot be decoded: {error}") from error
    if rows.num_rows != staged.rows:
        raise BlobDamaged(
            path=path,
            why=f"it stored {content_text}; the row count differs",
            expected=str(staged.rows),
            found=str(rows.num_rows),
        )
    return rows


def _check_version(version: bytes, path: str) -> None:
    if not version.isdigit():
        raise BlobDamaged(path=path, why=f"its schema has no valid format version: {version[:32]!r}")
    if int(version) != FORMAT_VERSION:
        raise UnsupportedFormat(path=path, found=int(version), supported=FORMAT_VERSION)
