"""Track a directory whose files are read once each: which were read, and which can be read now.

The position of a source of the connector `files`, version 1, is JSON. Its field `read` has the sorted names of all
files that were read, each with 16 bits of a hash of its size and modification time, compressed, as base64. That takes
about 6 bytes per file for numbered names and up to 30 for random ones, so a directory should not grow without limit.

1. A file is read if and only if its name is not in that set. Names and times need not arrive in order: a late file is
   read when it arrives, and no file is read twice. A watermark could not guarantee this.
2. A file is read only after two scans, at least `settle_s` apart, found it with the same size and time, and not empty.
   A writer that needs more safety writes the file elsewhere and moves it into the directory, which is atomic.
3. Files are read in the order of their times, then names. A file that has not settled delays the files after it, as
   their order may matter.
4. A file that has changed after it was read is reported, and is not read again.
"""

from __future__ import annotations

import base64
import fnmatch
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import xxhash

from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Lag

_VERSION = 1
_IGNORED = (".tmp", ".part")
_SHOWN_MAX = 20
_RENAME = ("file_unnamed", "Rename the file.")
_NEW_NAME = ("file_changed", "Write new rows to a file with a new name.")


@dataclass(frozen=True, slots=True, order=True)
class WatchedFile:
    """A file; files sort in the order in which they are read."""

    mtime_ns: int
    name: str
    bytes: int

    @property
    def mark(self) -> int:
        return xxhash.xxh3_64_intdigest(f"{self.bytes} {self.mtime_ns}".encode()) & 0xFFFF


class _FilesPosition(msgspec.Struct, frozen=True):
    version: int
    files: int
    read: str


def encode_position(read: Mapping[str, int]) -> str:
    """The position after these files were read; the values are their marks."""
    names = sorted(read)
    marks = np.array([read[name] for name in names], "<u2").tobytes()
    packed = zlib.compress("\0".join(names).encode(), 9) if names else b""
    sizes = len(packed).to_bytes(4, "little") if names else b""
    text = base64.b64encode(sizes + packed + marks).decode()
    return msgspec.json.encode(_FilesPosition(_VERSION, len(names), text)).decode()


START = encode_position({})


@lru_cache(maxsize=8)
def decode_position(position: str) -> Mapping[str, int]:
    """The marks of the files that were read, by name."""
    where = "position of a files source"
    try:
        found = msgspec.json.decode(position, type=_FilesPosition)
        content = base64.b64decode(found.read, validate=True)
        size = int.from_bytes(content[:4], "little")
        names = zlib.decompress(content[4 : 4 + size]).decode().split("\0") if found.files else []
        marks = np.frombuffer(content[4 + size :], "<u2").tolist()
        read = dict(zip(names, marks, strict=True))
    except (msgspec.MsgspecError, ValueError, zlib.error) as error:
        raise RecordDamaged(path=where, why=str(error)) from error
    if found.version != _VERSION:
        raise UnsupportedFormat(path=where, found=found.version, supported=_VERSION)
    return MappingProxyType(read)


@dataclass(slots=True)
class _Sighting:
    file: WatchedFile
    since_s: float


class Directory:
    """Scans a directory, or a single file, and remembers the previous scan."""

    def __init__(self, base: Path, declared: str, pattern: str, settle_s: float, runtime: Runtime) -> None:
        self.path = base / declared
        self.problems: tuple[Problem, ...] = ()
        self._has_scanned = False
        self._declared = declared
        self._pattern = pattern
        self._settle_s = settle_s
        self._runtime = runtime
        self._sightings: dict[str, _Sighting] = {}
        self._unnamed: list[Path] = []

    def file(self, name: str) -> Path:
        return self.path if self.path.is_file() else self.path / name

    def place(self, name: str) -> str:
        """The path as the script spells it."""
        return self._declared if self.path.is_file() else f"{self._declared.rstrip('/')}/{name}"

    def find_readable(self, read: Mapping[str, int]) -> list[WatchedFile]:
        """Scan the directory and return the files that can be read now, in order."""
        now_s = self._runtime.monotonic_s()
        files = self._list_files()
        fresh = [file for file in files if file.name not in read]
        self._report([file for file in files if read.get(file.name, file.mark) != file.mark])
        sightings: dict[str, _Sighting] = {}
        for file in fresh:
            before = self._sightings.get(file.name)
            sightings[file.name] = before if before is not None and before.file == file else _Sighting(file, now_s)
        self._sightings, self._has_scanned = sightings, True
        settled = []
        for file in sorted(fresh):
            if now_s - sightings[file.name].since_s < self._settle_s:
                break
            settled.append(file)
        return settled

    @property
    def is_waiting(self) -> bool:
        """Whether the last scan found files that were not read yet."""
        return bool(self._sightings)

    def drop_read(self, read: Mapping[str, int]) -> None:
        """Forget the sightings of files that were read."""
        self._sightings = {name: seen for name, seen in self._sightings.items() if name not in read}

    @property
    def lag(self) -> Lag:
        """The files of the last scan that were not read yet."""
        waiting = list(self._sightings.values())
        if not self._has_scanned:
            return Lag()
        oldest_s = min((seen.since_s for seen in waiting), default=None)
        waits_s = 0.0 if oldest_s is None else self._runtime.monotonic_s() - oldest_s
        return Lag(sum(seen.file.bytes for seen in waiting), files=len(waiting), seconds=waits_s)

    def forget(self, file: WatchedFile) -> None:
        """The file changed while it was read, and must settle again."""
        self._sightings.pop(file.name, None)

    def _list_files(self) -> list[WatchedFile]:
        paths = [self.path] if self.path.is_file() else self.path.iterdir()
        selected = [path for path in paths if self._is_selected(path.name)]
        self._unnamed = [path for path in selected if not _is_text(path.name)]
        return [file for path in selected if path not in self._unnamed and (file := _stat(path)) is not None]

    def _is_selected(self, name: str) -> bool:
        is_ignored = name.startswith((".", "_")) or name.endswith(_IGNORED)
        return not is_ignored and fnmatch.fnmatchcase(name, self._pattern)

    def _report(self, changed: list[WatchedFile]) -> None:
        found = {f"{path!r} is not read: the name is not UTF-8": _RENAME for path in self._unnamed}
        for file in sorted(changed)[:_SHOWN_MAX]:
            found[f"{self.file(file.name)} changed after it was read, and is not read again"] = _NEW_NAME
        if len(changed) > _SHOWN_MAX:
            found[f"{len(changed) - _SHOWN_MAX} other files changed after they were read"] = _NEW_NAME
        since_s = {problem.why: problem.since_s for problem in self.problems}
        now_s = self._runtime.wall_s() if found else 0.0
        self.problems = tuple(
            Problem(ComponentState.WARNING, code, why, remedy, since_s.get(why, now_s))
            for why, (code, remedy) in found.items()
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stat(path: Path) -> WatchedFile | None:
    """None if the path is not a file any more, or is an empty file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return WatchedFile(found.st_mtime_ns, path.name, found.st_size) if path.is_file() and found.st_size else None
