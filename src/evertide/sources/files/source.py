"""The connector `files`: reads each file of a directory once, as files arrive.

    CREATE TABLE t (...) USING files OPTIONS (path 'in/', format 'csv')     or  USING csv OPTIONS (path 'in/')

| option | meaning |
|---|---|
| path | a directory or a single file; relative to the script's directory |
| format | csv, json (one object per line) or parquet; omitted with USING csv, json, parquet |
| pattern | read only files with matching names, such as `*.csv`; never `.*`, `_*`, `*.tmp`, `*.part` |
| settle_ms | a file must have kept its size and time for this long; 500 |
| op_column | the column with the operation (I, U or D); without it every row is an insert or update |
| ignore_extra | true: ignore columns that the table does not have; false |
| header, delimiter, null_value | CSV: whether the first line has the column names (true), `,`, and the empty text |

1. A file is bound in one transaction; a large file has several fragments. Move complete files into the directory: a
   rename within one file system is atomic, a copy is not (see `evertide.sources.files.directory`).
2. A row that does not fit its table is a `Fault` with file and line.
3. A file with other columns, or of another format, stops the source with `SourceFailed`, after the files before it.
4. Bound input that is missing or has changed is `SourceChanged` (J4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from evertide.errors import SourceChanged, SourceFailed
from evertide.journal.records import Fragment, Place
from evertide.options import Options
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Lag, Limit, Offer, Rows, TableDeclaration, decode_place
from evertide.sources.files.csv import CsvRecords
from evertide.sources.files.directory import START, Directory, WatchedFile, decode_position, encode_position
from evertide.sources.files.fragments import FileFragment, FileRange, FileReader, FileTable
from evertide.sources.files.json_lines import JsonRecords
from evertide.sources.files.parquet import ParquetReader
from evertide.sources.files.records import RecordLayout
from evertide.sources.files.text import TextReader

FORMATS = ("csv", "json", "parquet")

_FILES_MAX = 1000
"""The most files of one offer: all of its fragments are in one record."""


class FilesSource:
    def __init__(self, name: str, table: str, directory: Directory, reader: FileReader) -> None:
        self.name = name
        self.tables: tuple[str, ...] = (table,)
        self._directory = directory
        self._reader = reader
        self._cuts: dict[tuple[WatchedFile, Limit], tuple[FileRange, ...]] = {}

    @property
    def start(self) -> str:
        return START

    @property
    def lag(self) -> Lag:
        return self._directory.lag

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Warnings of the last scan."""
        return self._directory.problems

    @property
    def is_waiting(self) -> bool:
        return self._directory.is_waiting

    def offer(self, position: str, limit: Limit) -> Offer | None:
        read = decode_position(position)
        taken: dict[str, int] = {}
        fragments: list[Fragment] = []
        rows = size = 0
        for file in self._find_readable(read):
            try:
                cuts = self._cut(file, limit)
            except SourceFailed:
                if taken:
                    break  # offer the files before it; the next offer raises the error
                raise
            if cuts is None:
                break
            taken[file.name] = file.mark
            fragments += [self._place(file, cut) for cut in cuts]
            rows, size = rows + sum(cut.rows for cut in cuts), size + file.bytes
            if rows >= limit.rows or size >= limit.bytes or len(taken) >= _FILES_MAX:
                break
        return Offer(encode_position({**read, **taken}), tuple(fragments), rows) if taken else None

    def _find_readable(self, read: Mapping[str, int]) -> Sequence[WatchedFile]:
        try:
            return self._directory.find_readable(read)
        except OSError as error:
            raise self._failure(self._directory.path, error) from error

    def _cut(self, file: WatchedFile, limit: Limit) -> tuple[FileRange, ...] | None:
        """None if the file changed while it was read. Cached, as the pipeline may request the same offer again."""
        key = (file, limit)
        if key not in self._cuts:
            path = self._directory.file(file.name)
            try:
                cuts = tuple(self._reader.split_file(path, limit))
                after = path.stat()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._failure(path, error) from error
            if (after.st_size, after.st_mtime_ns) != (file.bytes, file.mtime_ns):
                self._directory.forget(file)
                return None
            while len(self._cuts) >= _FILES_MAX:
                self._cuts.pop(next(iter(self._cuts)))
            self._cuts[key] = cuts
        return self._cuts[key]

    def _place(self, file: WatchedFile, cut: FileRange) -> Place:
        return Place(msgspec.json.encode(FileFragment(file.name, file.bytes, file.mtime_ns, cut)).decode())

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        file_fragment = decode_place(fragment, FileFragment, self.name)
        path = self._directory.file(file_fragment.path)
        try:
            self._verify(path, file_fragment)
            yield from self._reader.rows(path, file_fragment.cut, self._directory.place(file_fragment.path))
        except OSError as error:
            raise self._failure(path, error) from error

    def _verify(self, path: Path, file_fragment: FileFragment) -> None:
        """Compare by content, as a restored file may have another time."""
        cut = file_fragment.cut
        try:
            found, size = self._reader.read_checksum(path, cut), path.stat().st_size
        except FileNotFoundError as error:
            raise self._make_changed_error(path, f"the file, of {file_fragment.bytes} bytes, is gone") from error
        if found != cut.checksum:
            expected = (
                f"expected {file_fragment.bytes} bytes with the checksum {cut.checksum} in [{cut.first}, {cut.last})"
            )
            raise self._make_changed_error(path, f"{expected}, found {size} bytes with {found}")

    def _make_changed_error(self, path: Path, why: str) -> SourceChanged:
        return SourceChanged(source=self.name, where=str(path), why=why)

    def _failure(self, path: Path, error: OSError) -> SourceFailed:
        return SourceFailed(source=self.name, where=str(error.filename or path), why=error.strerror or str(error))

    def acknowledge(self, position: str) -> None:
        """Files are not deleted; they only no longer count as waiting."""
        self._directory.drop_read(decode_position(position))

    def close(self) -> None:
        """Nothing is open between calls."""


def open_files(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> FilesSource:
    (declaration,) = tables
    options = declaration.read_options()
    path = options.require("path", "incoming/")
    if "://" in path:
        raise options.refusal("path", f"is {path!r}: expected a local directory or file")
    short = declaration.connector.lower()
    kind = short if short in FORMATS else options.choice("format", FORMATS, options.text("format"))
    table = FileTable(declaration, name, options.text("op_column"), options.boolean("ignore_extra", default=False))
    pattern = options.text("pattern", "*")
    settle_s = options.integer("settle_ms", 500) / 1000
    reader = _reader(kind, table, options)
    options.check_unknown()
    return FilesSource(name, declaration.name, Directory(base, path, pattern, settle_s, runtime), reader)


def _reader(kind: str, table: FileTable, options: Options) -> FileReader:
    if kind == "parquet":
        return ParquetReader(table)
    if kind == "json":
        return TextReader(table, JsonRecords(table), RecordLayout())
    delimiter = options.text("delimiter", ",").replace("\\t", "\t")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise options.refusal("delimiter", f"is {delimiter!r}: expected one ASCII character, not a quote or line end")
    records = CsvRecords(table, delimiter, options.text("null_value"), options.boolean("header", default=True))
    return TextReader(table, records, RecordLayout(delimiter))
