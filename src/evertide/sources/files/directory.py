"""A directory whose files are read once each: which ones were, and which may be now.

Where it lies: as JSON in the position of a source of kind `files`, version 1. `read` holds the names of all files that
were read, sorted, each with 16 bits of a hash of its size and modification time; compressed, and as base64. That takes
6 bytes a file or so for names that count up, and up to 30 for random ones: no directory should grow for ever.

1. A file is read if and only if its name is not in the set. Neither names nor times need to come in order: a late file
   is read when it comes, and none is read twice. A set is what tells this for sure; a watermark does not.
2. A file is taken only after two looks, `settle_s` apart, found it with the same size and time, and while it is not
   empty. Who needs more than that writes elsewhere and moves the file in, which is atomic.
3. Files are taken by time, then name; one that has not settled holds back those after it, as their order may matter.
4. A file that was read and has another size or time now is not read again, and reported.
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
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Lag

__all__ = ["START", "Directory", "WatchedFile", "read_files", "written"]

_VERSION = 1
_IGNORED = (".tmp", ".part")
_SHOWN_MAX = 20
_RENAME = ("file_unnamed", "Rename it.")
_NEW_NAME = ("file_changed", "Give what is new a new name.")


@dataclass(frozen=True, slots=True, order=True)
class WatchedFile:
    """In the order in which files are read."""

    mtime_ns: int
    name: str
    bytes: int

    @property
    def mark(self) -> int:
        return xxhash.xxh3_64_intdigest(f"{self.bytes} {self.mtime_ns}".encode()) & 0xFFFF


class _Position(msgspec.Struct, frozen=True):
    version: int
    files: int
    read: str


def written(read: Mapping[str, int]) -> str:
    """A position: the marks of all files that were read, by name."""
    names = sorted(read)
    marks = np.array([read[name] for name in names], "<u2").tobytes()
    packed = zlib.compress("\0".join(names).encode(), 9) if names else b""
    sizes = len(packed).to_bytes(4, "little") if names else b""
    text = base64.b64encode(sizes + packed + marks).decode()
    return msgspec.json.encode(_Position(_VERSION, len(names), text)).decode()


START = written({})


@lru_cache(maxsize=8)
def read_files(position: str) -> Mapping[str, int]:
    """What `written` wrote."""
    where = "the position of a source of files"
    try:
        found = msgspec.json.decode(position, type=_Position)
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
class _Look:
    file: WatchedFile
    since_s: float


class Directory:
    """Looks at a directory, and remembers the look before. `path` may be a single file, too."""

    def __init__(self, base: Path, declared: str, pattern: str, settle_s: float, runtime: Runtime) -> None:
        self.path = base / declared
        self.problems: tuple[Problem, ...] = ()
        self._has_looked = False
        self._declared = declared
        self._pattern = pattern
        self._settle_s = settle_s
        self._runtime = runtime
        self._looks: dict[str, _Look] = {}
        self._unnamed: list[Path] = []

    def file(self, name: str) -> Path:
        return self.path if self.path.is_file() else self.path / name

    def place(self, name: str) -> str:
        """As the script has it."""
        return self._declared if self.path.is_file() else f"{self._declared.rstrip('/')}/{name}"

    def settled(self, read: Mapping[str, int]) -> list[WatchedFile]:
        """The files that may be read now, in order."""
        now_s = self._runtime.monotonic_s()
        there = self._there()
        fresh = [file for file in there if file.name not in read]
        self._report([file for file in there if read.get(file.name, file.mark) != file.mark])
        looks: dict[str, _Look] = {}
        for file in fresh:
            before = self._looks.get(file.name)
            looks[file.name] = before if before is not None and before.file == file else _Look(file, now_s)
        self._looks, self._has_looked = looks, True
        settled = []
        for file in sorted(fresh):
            if now_s - looks[file.name].since_s < self._settle_s:
                break
            settled.append(file)
        return settled

    @property
    def is_waiting(self) -> bool:
        """Whether the last look found files that are yet to be read."""
        return bool(self._looks)

    def taken(self, read: Mapping[str, int]) -> None:
        """These are bound."""
        self._looks = {name: look for name, look in self._looks.items() if name not in read}

    @property
    def lag(self) -> Lag:
        """Of the files that the last look found, and that were not taken."""
        looks = list(self._looks.values())
        if not self._has_looked:
            return Lag()
        oldest_s = min((look.since_s for look in looks), default=None)
        waits_s = 0.0 if oldest_s is None else self._runtime.monotonic_s() - oldest_s
        return Lag(sum(look.file.bytes for look in looks), files=len(looks), seconds=waits_s)

    def forget(self, file: WatchedFile) -> None:
        """It changed while it was read: it has to settle again."""
        self._looks.pop(file.name, None)

    def _there(self) -> list[WatchedFile]:
        paths = [self.path] if self.path.is_file() else self.path.iterdir()
        meant = [path for path in paths if self._is_meant(path.name)]
        self._unnamed = [path for path in meant if not _is_text(path.name)]
        return [file for path in meant if path not in self._unnamed and (file := _stat(path)) is not None]

    def _is_meant(self, name: str) -> bool:
        is_ignored = name.startswith((".", "_")) or name.endswith(_IGNORED)
        return not is_ignored and fnmatch.fnmatchcase(name, self._pattern)

    def _report(self, changed: list[WatchedFile]) -> None:
        found = {f"{path!r}: its name is not UTF-8, so it is not read": _RENAME for path in self._unnamed}
        for file in sorted(changed)[:_SHOWN_MAX]:
            why = f"{self.file(file.name)}: has another size or time than when it was read; it is not read again"
            found[why] = _NEW_NAME
        if len(changed) > _SHOWN_MAX:
            found[f"{len(changed) - _SHOWN_MAX} more files changed after they were read"] = _NEW_NAME
        since_s = {problem.why: problem.since_s for problem in self.problems}
        now_s = self._runtime.wall_s() if found else 0.0
        self.problems = tuple(
            Problem("warning", code, why, remedy, since_s.get(why, now_s)) for why, (code, remedy) in found.items()
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stat(path: Path) -> WatchedFile | None:
    """None if it is no file, is empty, or is gone meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return WatchedFile(found.st_mtime_ns, path.name, found.st_size) if path.is_file() and found.st_size else None
