"""The connector `files`: a directory whose files are read once each, as they come.

    CREATE TABLE t (...) USING files OPTIONS (path 'in/', format 'csv')     or  USING csv OPTIONS (path 'in/')

| option | meaning |
|---|---|
| path | a directory, or a single file; relative to the script's own directory |
| format | csv, json (an object in each line) or parquet; not needed with USING csv, json, parquet |
| pattern | only files with such names, as in `*.csv`; never those with `.` or `_` in front, `*.tmp`, `*.part` |
| settle_ms | a file must have had the same size and time for so long; 500 |
| op_column | a column that says insert, update or delete (I, U, D); without it all rows are inserts or updates |
| ignore_extra | true: columns that the table does not have are passed over; false |
| header, delimiter, null_value | of CSV: whether the first line names the columns (true), `,`, and the empty text |

A file is a unit: it is bound in one transaction, in several fragments if it is large. Move files in when they are
whole: a rename within one file system is atomic, a copy is not (`evertide.sources.files.directory` says what is done
about it).

A row that does not fit its table is a `Fault` with file and line. A file that does not belong here (other columns, no
Parquet) stops the source with `SourceFailed`, after the files before it. What was bound and is not there any more, or
differs, is `SourceChanged` (J4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from evertide.errors import InvalidInput, SourceChanged, SourceFailed
from evertide.journal.records import Fragment, Place
from evertide.options import Options
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Lag, Limit, Offer, Rows, TableDeclaration
from evertide.sources.files.csv import CsvRecords
from evertide.sources.files.directory import START, Directory, WatchedFile, read_files, written
from evertide.sources.files.json_lines import JsonRecords
from evertide.sources.files.parquet import ParquetReader
from evertide.sources.files.pieces import Cut, Piece, Reader, Table
from evertide.sources.files.records import Layout
from evertide.sources.files.text import TextReader

__all__ = ["FORMATS", "FilesSource", "open_files"]

FORMATS = ("csv", "json", "parquet")

_FILES_MAX = 1000
"""Of one offer: each is a fragment, and all are in one record."""


class FilesSource:
    def __init__(self, name: str, table: str, directory: Directory, reader: Reader) -> None:
        self.name = name
        self.tables: tuple[str, ...] = (table,)
        self._directory = directory
        self._reader = reader
        self._cuts: dict[tuple[WatchedFile, Limit], tuple[Cut, ...]] = {}

    @property
    def start(self) -> str:
        return START

    @property
    def lag(self) -> Lag:
        return self._directory.lag

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Warnings, from the last look."""
        return self._directory.problems

    @property
    def is_waiting(self) -> bool:
        return self._directory.is_waiting

    def offer(self, position: str, limit: Limit) -> Offer | None:
        read = read_files(position)
        taken: dict[str, int] = {}
        fragments: list[Fragment] = []
        rows = size = 0
        for file in self._settled(read):
            try:
                cuts = self._cut(file, limit)
            except SourceFailed:
                if taken:
                    break  # those before it are good, and it is told in the next offer
                raise
            if cuts is None:
                break
            taken[file.name] = file.mark
            fragments += [self._place(file, cut) for cut in cuts]
            rows, size = rows + sum(cut.rows for cut in cuts), size + file.bytes
            if rows >= limit.rows or size >= limit.bytes or len(taken) >= _FILES_MAX:
                break
        return Offer(written({**read, **taken}), tuple(fragments), rows) if taken else None

    def _settled(self, read: Mapping[str, int]) -> Sequence[WatchedFile]:
        try:
            return self._directory.settled(read)
        except OSError as error:
            raise self._failed(self._directory.path, error) from error

    def _cut(self, file: WatchedFile, limit: Limit) -> tuple[Cut, ...] | None:
        """None if the file changed meanwhile. Kept, as an offer is made again if another was bound first."""
        key = (file, limit)
        if key not in self._cuts:
            path = self._directory.file(file.name)
            try:
                cuts = tuple(self._reader.cut(path, limit))
                after = path.stat()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._failed(path, error) from error
            if (after.st_size, after.st_mtime_ns) != (file.bytes, file.mtime_ns):
                self._directory.forget(file)
                return None
            while len(self._cuts) >= _FILES_MAX:
                self._cuts.pop(next(iter(self._cuts)))
            self._cuts[key] = cuts
        return self._cuts[key]

    def _place(self, file: WatchedFile, cut: Cut) -> Place:
        return Place(msgspec.json.encode(Piece(file.name, file.bytes, file.mtime_ns, cut)).decode())

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        piece = self._piece(fragment)
        path = self._directory.file(piece.path)
        try:
            self._verify(path, piece)
            yield from self._reader.rows(path, piece.cut, self._directory.place(piece.path))
        except OSError as error:
            raise self._failed(path, error) from error

    def _piece(self, fragment: Fragment) -> Piece:
        if not isinstance(fragment, Place):
            raise InvalidInput(where=f"source {self.name!r}", why="a staged fragment is none of a source of files")
        try:
            return msgspec.json.decode(fragment.where, type=Piece)
        except msgspec.MsgspecError as error:
            raise InvalidInput(where=f"source {self.name!r}", why=f"{fragment.where!r} is no piece: {error}") from error

    def _verify(self, path: Path, piece: Piece) -> None:
        """By content: a file that was brought back has another time."""
        cut = piece.cut
        try:
            found, size = self._reader.found(path, cut), path.stat().st_size
        except FileNotFoundError as error:
            raise self._changed(path, f"expected {piece.bytes} bytes, found no such file") from error
        if found != cut.checksum:
            expected = f"expected {piece.bytes} bytes with the checksum {cut.checksum} in [{cut.first}, {cut.last})"
            raise self._changed(path, f"{expected}, found {size} bytes with {found}")

    def _changed(self, path: Path, why: str) -> SourceChanged:
        return SourceChanged(source=self.name, where=str(path), why=why)

    def _failed(self, path: Path, error: OSError) -> SourceFailed:
        return SourceFailed(source=self.name, where=str(error.filename or path), why=error.strerror or str(error))

    def acknowledge(self, position: str) -> None:
        """Files stay where they are; they only do not wait any more."""
        self._directory.taken(read_files(position))

    def close(self) -> None:
        """Nothing is open between calls."""


def open_files(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> FilesSource:
    (declaration,) = tables
    options = declaration.read_options()
    path = options.required("path", "incoming/")
    if "://" in path:
        raise options.refusal("path", f"is {path!r}: only directories of this machine can be watched")
    short = declaration.connector.lower()
    kind = short if short in FORMATS else options.choice("format", FORMATS, options.text("format"))
    table = Table(declaration, name, options.text("op_column"), options.boolean("ignore_extra", default=False))
    pattern = options.text("pattern", "*")
    settle_s = options.integer("settle_ms", 500) / 1000
    reader = _reader(kind, table, options)
    options.end()
    return FilesSource(name, declaration.name, Directory(base, path, pattern, settle_s, runtime), reader)


def _reader(kind: str, table: Table, options: Options) -> Reader:
    if kind == "parquet":
        return ParquetReader(table)
    if kind == "json":
        return TextReader(table, JsonRecords(table), Layout())
    delimiter = options.text("delimiter", ",").replace("\\t", "\t")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise options.refusal("delimiter", f"is {delimiter!r}: expected one character of ASCII, no quote or line end")
    records = CsvRecords(table, delimiter, options.text("null_value"), options.boolean("header", default=True))
    return TextReader(table, records, Layout(delimiter))
