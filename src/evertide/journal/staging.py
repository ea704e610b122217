"""Staged rows: input that its source cannot send again, made durable before a transaction names it.

Where it lies: blobs `journal/<source>/<writer>-<seq>.arrow`. Version 1, written as `evertide.format` into the metadata
of the schema. The process that owns the source stages; truncation and `drop_unbound` (`evertide.journal.garbage`)
delete.

Layout: an Arrow IPC stream, compressed with lz4, of the columns as they were given.

1. A blob's length and XXH3-128 are in the `Staged` that names it, and are looked at before anything is decoded.
2. Between stage and bind nothing names the blob. So its sequence number stays open with the writer, and no collector
   judges it, until a record names it (`settle`) or it is given up (`drop`). Only a fragment that is open can be bound:
   otherwise a record could name what was deleted.
3. A bind of which nobody knows whether it happened may still arrive. What it names is neither settled nor dropped
   until the log has a record in its place (`doubt`).

Claims belong to the writer, doubts to this object: a process has one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from evertide.errors import BlobDamaged, BlobMissing, EvertideError, InvalidInput, Unavailable, UnsupportedFormat
from evertide.journal.log import TimeLog
from evertide.journal.records import Bound, Staged
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.paths import Name, check_source, staged_key, staged_prefix
from evertide.store.retry import put_settled, reading
from evertide.store.writers import Writer

__all__ = ["FORMAT_VERSION", "Staging", "settle_named", "source_of", "staged_of"]

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

_FORMAT_KEY = b"evertide.format"
_SUFFIX = "arrow"
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def staged_of(bound: Bound) -> list[Staged]:
    """The staged fragments that a record names."""
    inputs = bound.inputs.values()
    return [fragment for source in inputs for fragment in source.fragments if isinstance(fragment, Staged)]


def source_of(key: str) -> str:
    """Whose rows a staged blob holds."""
    return key.removeprefix(staged_prefix()).partition("/")[0]


def settle_named(records: Iterable[Bound], writer: Writer) -> None:
    """What a record names is bound, however its writer learns so."""
    for record in records:
        for fragment in staged_of(record):
            name = Name.parse(fragment.key)
            if name is not None and name.writer == writer.id:
                writer.settle(name.seq)


@dataclass(frozen=True, slots=True, eq=False)
class _Doubt:
    """A bind that may have happened: the number that its record would have, and the blobs that it names."""

    number: int
    keys: frozenset[str]


class Staging:
    """What this process staged and has not bound yet. The journal sees to it that no drop meets a bind."""

    def __init__(self, blob: Blob, bound: TimeLog[Bound], runtime: Runtime, settings: Settings) -> None:
        self._blob = blob
        self._bound = bound
        self._runtime = runtime
        self._settings = settings
        self._doubts: list[_Doubt] = []

    def stage(self, source: str, table: str, rows: pa.Table, writer: Writer) -> Staged:
        check_source(source)
        content = _encoded(rows)
        seq = writer.open_claim()
        key = staged_key(source, Name(writer.id, seq, _SUFFIX))
        try:
            put_settled(self._blob, key, content, self._runtime, self._settings)
        except EvertideError:
            writer.settle(seq)  # also if it may be there: nobody knows of it, so nothing will ever name it
            raise
        return Staged(table, key, rows.num_rows, len(content), xxhash.xxh3_128_hexdigest(content))

    def load(self, staged: Staged, time: int | None) -> pa.Table:
        path = self._blob.path(staged.key)
        whose = _whose(staged, time)
        try:
            content = reading(lambda: self._blob.get(staged.key), self._runtime, self._settings)
        except BlobMissing as error:
            raise BlobMissing(path=path, why=f"it holds {whose}: {error.why}") from error
        found = xxhash.xxh3_128_hexdigest(content)
        if len(content) != staged.bytes or found != staged.checksum:
            why = f"it holds {whose}: {staged.bytes} bytes were stored, {len(content)} are there, with other content"
            if len(content) == staged.bytes:
                why = f"it holds {whose}: the checksum does not fit the content"
            raise BlobDamaged(path=path, why=why, expected=staged.checksum, found=found)
        return _decoded(content, staged, path, whose)

    def check_open(self, source: str, fragments: Iterable[Staged], writer: Writer) -> None:
        """Refuse to bind what somebody may have deleted (2)."""
        for fragment in fragments:
            name = Name.parse(fragment.key)
            where = f"source {source!r}, {self._blob.path(fragment.key)}"
            if source_of(fragment.key) != source:
                raise InvalidInput(where=where, why="the fragment was staged by another source")
            if name is None or name.writer != writer.id:
                raise InvalidInput(where=where, why=f"the fragment was not staged by this writer, {writer.id}")
            if not writer.is_open(name.seq):
                raise InvalidInput(where=where, why="the fragment is bound already, or was dropped")

    @contextmanager
    def doubt(self, number: int, bound: Bound) -> Iterator[None]:
        """Around the commit of a record: whatever ends it without a definite answer leaves the doubt (3)."""
        doubt = _Doubt(number, frozenset(fragment.key for fragment in staged_of(bound)))
        self._doubts.append(doubt)
        try:
            yield
        except Unavailable:
            self._doubts.remove(doubt)
            raise
        self._doubts.remove(doubt)

    def end_doubts(self, writer: Writer) -> None:
        """Once the log has a record where one may have been ours, it is ours or never will be."""
        head = self._bound.head() if self._doubts else None
        over = [doubt for doubt in self._doubts if head is not None and doubt.number <= head.number]
        if over:
            settle_named((record.value for record in self._bound.all()), writer)
            self._doubts = [doubt for doubt in self._doubts if doubt not in over]

    def may_be_bound(self, fragments: Iterable[Staged], writer: Writer) -> bool:
        """Of fragments that were neither dropped nor acknowledged: a bind in doubt names one, or did and is settled."""
        doubtful = self._doubtful()
        names = [(fragment.key, Name.parse(fragment.key)) for fragment in fragments]
        return any(key in doubtful or (name is not None and not writer.is_open(name.seq)) for key, name in names)

    def _doubtful(self) -> frozenset[str]:
        return frozenset(key for doubt in self._doubts for key in doubt.keys)

    def drop(self, fragments: Iterable[Staged], writer: Writer) -> list[str]:
        self.end_doubts(writer)
        doubtful = self._doubtful()
        dropped = []
        for fragment in fragments:
            name = Name.parse(fragment.key)
            if name is None or name.writer != writer.id or not writer.is_open(name.seq):
                continue
            if fragment.key in doubtful:
                logger.warning("not dropped, as a bind in doubt names it: %s", self._blob.path(fragment.key))
                continue
            writer.settle(name.seq)  # first: from here on it cannot be bound
            dropped.append(fragment.key)
            try:
                self._blob.delete(fragment.key)
            except EvertideError as error:
                logger.warning("left for collection: %s", error)
        return dropped


def _whose(staged: Staged, time: int | None) -> str:
    bound = "not bound yet" if time is None else f"bound in transaction {time}"
    return f"{staged.rows} rows of table {staged.table!r} from source {source_of(staged.key)!r}, {bound}"


def _encoded(rows: pa.Table) -> bytes:
    marked = rows.replace_schema_metadata({**(rows.schema.metadata or {}), _FORMAT_KEY: str(FORMAT_VERSION).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, marked.schema, options=_LZ4) as stream:
        stream.write_table(marked)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _decoded(content: bytes, staged: Staged, path: str, whose: str) -> pa.Table:
    try:
        with pa.ipc.open_stream(content) as stream:
            metadata = dict(stream.schema.metadata or {})
            _check_version(metadata.pop(_FORMAT_KEY, b""), path)
            rows = stream.read_all().replace_schema_metadata(metadata or None)
    except pa.ArrowException as error:
        raise BlobDamaged(path=path, why=f"it holds {whose}, and cannot be decoded: {error}") from error
    if rows.num_rows != staged.rows:
        raise BlobDamaged(path=path, why=f"it holds {whose}", expected=str(staged.rows), found=str(rows.num_rows))
    return rows


def _check_version(version: bytes, path: str) -> None:
    if not version.isdigit():
        raise BlobDamaged(path=path, why=f"its schema names no format version: {version[:32]!r}")
    if int(version) != FORMAT_VERSION:
        raise UnsupportedFormat(path=path, found=int(version), supported=FORMAT_VERSION)
