"""`SimulatedDisk`: the storage of one machine, which may lose at a power cut all that is not durable.

Production code runs on `disk.files` (the `Files` of `LocalBlob`) and on `disk.meta` (a `Meta`). The model:

1. A file is bytes, and a name in a directory. `write_new` creates both; neither is durable. `sync` makes only the bytes
   durable; `sync_directory` makes only the names in that one directory durable. If the name is durable and the bytes
   are not, the file is empty, torn, zeroes or garbage after a power cut.
2. A directory is a name in its parent, durable once the parent is synced. If it is lost, so is its content.
3. A rename is one change: after a power cut, the file has either its old or its new name, and the previous target is
   kept or replaced accordingly. Changes that share a name keep their order: the later one survives only with the
   earlier one. Other changes survive in any combination.
4. A sync that fails with EIO, ENOSPC or EDQUOT drops the bytes or names that it should have written: a later sync
   succeeds, but does not make them durable. They must be written again. After any other error, the sync had no effect.
5. A Meta commit is atomic and durable at once. A truncation is durable with the next commit; until then a power cut may
   undo it.
6. The power is cut either before an operation has any effect, or after its full effect but before it returns. From then
   on every operation raises `PowerCut`. `files` and `meta` from before a `reboot` belong to dead processes, and raise
   it forever.
7. `reboot(survivors)` decides which changes that were not durable survive, since a real disk may have written them:
   "none"; "all", as after the kill of a process; "names", every name and no bytes, which are files of length 0; or a
   seed, which decides for each name, truncation and file; the bytes of a file may be torn as in rule 1. Survivors are
   durable.
8. `capacity_bytes` limits the bytes of files and records. A file that does not fit is truncated, and raises ENOSPC; a
   commit that does not fit raises `StorageFull`, also one that only removes records if no byte is free. Names need no
   bytes. A larger capacity ends these errors.
9. Every operation, also a read, is numbered from 1 and logged before it runs. The log depends only on the seed if there
   is one thread.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from evertide.errors import StorageFull
from evertide.store.blobs.file_system import DirectoryEntry
from evertide.store.key_notifier import KeyNotifier
from evertide.store.memory import MemoryMeta
from evertide.store.meta import Guard, Record, Stale, Write
from tests.kit.disk_tree import Directory, Fate, File, Node, Survivors
from tests.kit.runtime import ManualRuntime

__all__ = ["Operation", "PowerCut", "SimulatedDisk", "SimulatedFiles", "SimulatedMeta", "Survivors"]

_DROPPED = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
_LOOKS = {"read", "list_directory", "exists", "size", "meta.head", "meta.heads", "meta.scan", "meta.wait"}


class PowerCut(BaseException):
    """The machine is off. Not an `Exception`, so that no retry or clean-up handles it as an error."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An entry of the log. `what` is a path or key, `bytes` the size that it writes."""

    number: int
    op: str
    what: str
    bytes: int = 0

    @property
    def changes(self) -> bool:
        """Whether it can change anything: a cut after a read is the same as one before the next operation."""
        return self.op not in _LOOKS

    def __str__(self) -> str:
        return f"{self.number} {self.op} {self.what}" + (f" ({self.bytes} bytes)" if self.bytes else "")


@dataclass(frozen=True, slots=True)
class _Fault:
    pattern: str
    error: Exception
    after: bool

    def hits(self, op: str, what: str) -> bool:
        return fnmatchcase(op, self.pattern) or fnmatchcase(f"{op} {what}", self.pattern)


class _Machine:
    """The state that all operations check: power, the log, and the injected faults."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self.lock = threading.RLock()
        self.notifier = KeyNotifier(runtime)
        self.boot = 0
        self.is_on = True
        self.log: list[Operation] = []
        self.cut: tuple[int, bool] | None = None
        self.faults: list[_Fault] = []

    def is_alive(self, boot: int) -> bool:
        return self.is_on and boot == self.boot

    def check_alive(self, boot: int) -> None:
        if not self.is_alive(boot):
            raise PowerCut("the power is off, or was since this process started")

    def switch_off(self) -> None:
        with self.lock:
            self.is_on = False
        self.notifier.notify_all_keys()

    @contextmanager
    def operation(self, boot: int, op: str, what: str, size: int = 0) -> Iterator[None]:
        with self.lock:
            self.check_alive(boot)
            operation = Operation(len(self.log) + 1, op, what, size)
            self.log.append(operation)
            self._cut(operation, after=False)
            try:
                fault = next((fault for fault in self.faults if fault.hits(op, what)), None)
                if fault is not None:
                    self.faults.remove(fault)
                    if not fault.after:
                        raise fault.error
                yield
                if fault is not None:
                    raise fault.error
            finally:
                self._cut(operation, after=True)

    def _cut(self, operation: Operation, *, after: bool) -> None:
        if self.cut == (operation.number, after):
            self.switch_off()
            raise PowerCut(f"the power went {'right after' if after else 'before'} {operation}")


@dataclass(slots=True, eq=False, repr=False)
class _Process:
    """A process that uses the disk, from one boot to the next power cut."""

    _machine: _Machine
    _boot: int
    _room_bytes: Callable[[], int | None]

    def _operation(self, op: str, what: Path | str, size: int = 0) -> AbstractContextManager[None]:
        return self._machine.operation(self._boot, op, str(what), size)


@dataclass(slots=True, eq=False, repr=False)
class SimulatedFiles(_Process):
    """`Files` on a simulated disk, for one process: see rules 1 to 4 and 8."""

    _top: Directory

    def read(self, path: Path) -> bytes:
        with self._operation("read", path):
            return self._file(path).data

    def read_range(self, path: Path, offset: int, length: int) -> bytes:
        return self.read(path)[offset : offset + length]

    def write_new(self, path: Path, data: bytes) -> None:
        with self._operation("write_new", path, len(data)):
            parent = self._directory(path.parent)
            if path.name in parent.names:
                raise _os_error(errno.EEXIST, path)
            room = self._room_bytes()
            fits = len(data) if room is None else max(0, min(len(data), room))
            parent.change(File(bytes(data[:fits])), path.name)
            if fits < len(data):
                raise _os_error(errno.ENOSPC, path)

    def sync(self, path: Path) -> None:
        self._sync("sync", path, self._file)

    def rename(self, source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise ValueError(f"a rename stays in its directory: {source} -> {target}")
        with self._operation("rename", f"{source} -> {target}"):
            file = self._file(source)
            parent = self._directory(target.parent)
            if isinstance(parent.names.get(target.name), Directory):
                raise _os_error(errno.EISDIR, target)
            parent.change(file, source.name, target.name)

    def sync_directory(self, path: Path) -> None:
        self._sync("sync_directory", path, self._directory)

    def unlink(self, path: Path) -> None:
        with self._operation("unlink", path):
            self._file(path)
            self._directory(path.parent).change(None, path.name)

    def make_directory(self, path: Path) -> None:
        with self._operation("make_directory", path):
            parent = self._directory(path.parent)
            if not path.name or path.name in parent.names:
                raise _os_error(errno.EEXIST, path)
            parent.change(Directory(), path.name)

    def remove_directory(self, path: Path) -> None:
        with self._operation("remove_directory", path):
            if self._directory(path).names:
                raise _os_error(errno.ENOTEMPTY, path)
            self._directory(path.parent).change(None, path.name)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        with self._operation("list_directory", path):
            nodes = self._directory(path).names.items()
            return [DirectoryEntry(name, isinstance(node, Directory), len(node.data)) for name, node in nodes]

    def exists(self, path: Path) -> bool:
        with self._operation("exists", path):
            with suppress(FileNotFoundError, NotADirectoryError):
                return self._node(path) is not None
            return False

    def size(self, path: Path) -> int:
        with self._operation("size", path):
            return len(self._file(path).data)

    def _sync(self, op: str, path: Path, find: Callable[[Path], Node]) -> None:
        with self._machine.lock:
            try:
                with self._operation(op, path):
                    find(path).sync("durable")
            except OSError as error:
                if error.errno in _DROPPED:
                    find(path).sync("lost")
                raise

    def _node(self, path: Path) -> Node:
        node: Node = self._top
        for name in path.relative_to(path.anchor).parts:
            if isinstance(node, File):
                raise _os_error(errno.ENOTDIR, path)
            if name not in node.names:
                raise _os_error(errno.ENOENT, path)
            node = node.names[name]
        return node

    def _file(self, path: Path) -> File:
        node = self._node(path)
        if isinstance(node, Directory):
            raise _os_error(errno.EISDIR, path)
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._node(path)
        if isinstance(node, File):
            raise _os_error(errno.ENOTDIR, path)
        return node


class _Records:
    """The records of `Meta`: `kept`, without the truncations that are not durable (`floors`)."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self.kept = MemoryMeta(runtime)
        self.floors: dict[str, int] = {}

    def scan(self, key: str, after: int, limit: int | None) -> list[Record]:
        return self.kept.scan(key, max(after, self.floors.get(key, 0) - 1), limit)

    def truncate(self, key: str, below: int) -> None:
        head = self.kept.head(key)
        if head is not None:
            self.floors[key] = max(self.floors.get(key, 0), min(below, head.seqno))

    def flush(self, keeps: Callable[[], bool]) -> None:
        for key in sorted(self.floors):
            if keeps():
                self.kept.truncate(key, self.floors[key])
        self.floors.clear()

    def all_bytes(self) -> int:
        return sum(len(record.data) for key in self.kept.heads("") for record in self.kept.scan(key))


@dataclass(slots=True, eq=False, repr=False)
class SimulatedMeta(_Process):
    """`Meta` on a simulated disk, for one process: see rules 5 and 8."""

    _records: _Records

    def head(self, key: str) -> Record | None:
        with self._operation("meta.head", key):
            return self._records.kept.head(key)

    def heads(self, prefix: str) -> dict[str, Record]:
        with self._operation("meta.heads", prefix):
            return self._records.kept.heads(prefix)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        with self._operation("meta.scan", key):
            return self._records.scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        keys = [write.key for write in writes]
        size = sum(len(write.data or b"") for write in writes)
        with self._operation("meta.commit", " ".join(keys), size):
            room = self._room_bytes()
            if room is not None and room < max(1, size):
                raise StorageFull(path=self.path(" ".join(keys)), why=f"{size} bytes do not fit into {max(0, room)}")
            stale = self._records.kept.commit(writes, guards)
            if stale is None:
                self._records.flush(lambda: True)
                self._machine.notifier.notify(keys)
            return stale

    def truncate(self, key: str, below: int) -> None:
        with self._operation("meta.truncate", key):
            self._records.truncate(key, below)

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        with self._operation("meta.wait", key):
            pass
        found = self._machine.notifier.wait(key, lambda: self._is_above(key, after), timeout_s, poll_s=timeout_s)
        self._machine.check_alive(self._boot)
        return found

    def close(self) -> None:
        """Does nothing: no write is buffered."""

    def path(self, key: str) -> str:
        return f"simulated:{key}"

    def _is_above(self, key: str, after: int) -> bool:
        """Also true for a dead process, so that its wait ends."""
        head = self._records.kept.head(key)
        return not self._machine.is_alive(self._boot) or (head is not None and head.seqno > after)


class SimulatedDisk:
    """`root` exists, and is durable, from the start. `files` and `meta` are for a process that starts now."""

    def __init__(self, runtime: ManualRuntime | None = None, *, capacity_bytes: int | None = None) -> None:
        self.runtime = runtime or ManualRuntime()
        self.root = Path("/disk")
        self.capacity_bytes = capacity_bytes
        self._machine = _Machine(self.runtime)
        self._records = _Records(self.runtime)
        self._top = Directory()
        self._top.change(Directory(), self.root.name)
        self._top.sync("durable")

    @property
    def files(self) -> SimulatedFiles:
        return SimulatedFiles(self._machine, self._machine.boot, self._room_bytes, self._top)

    @property
    def meta(self) -> SimulatedMeta:
        return SimulatedMeta(self._machine, self._machine.boot, self._room_bytes, self._records)

    @property
    def log(self) -> tuple[Operation, ...]:
        return tuple(self._machine.log)

    @property
    def is_on(self) -> bool:
        return self._machine.is_on

    @property
    def used_bytes(self) -> int:
        with self._machine.lock:
            return self._top.all_bytes() + self._records.all_bytes()

    def cut_at(self, number: int, *, after: bool) -> None:
        """Cut the power at the operation with this number: before it, or after its effect."""
        with self._machine.lock:
            if number <= len(self._machine.log):
                raise ValueError(f"operation {number} is over: {len(self._machine.log)} were done")
            self._machine.cut = (number, after)

    def cut(self) -> None:
        """Cut the power now, between two operations."""
        self._machine.switch_off()

    def reboot(self, survivors: Survivors = "none") -> None:
        """Cut the power if it is on, apply `survivors`, and start again without injected faults."""
        self.cut()
        with self._machine.lock:
            fate = Fate(survivors, len(self._machine.log))
            self._top.settle(fate)
            self._records.flush(fate.keeps)
            self.heal()
            self._machine.cut = None
            self._machine.boot += 1
            self._machine.is_on = True

    def fail_next(self, pattern: str, error: Exception, *, after: bool = False, times: int = 1) -> None:
        """Make the next `times` operations that match fail: without effect, or `after` their effect.

        The pattern matches the operation ("sync", "meta.*"), or it and its path or key ("rename *.parquet").
        """
        with self._machine.lock:
            self._machine.faults += [_Fault(pattern, error, after)] * times

    def heal(self) -> None:
        """Remove the injected faults that did not occur yet."""
        with self._machine.lock:
            self._machine.faults.clear()

    def _room_bytes(self) -> int | None:
        return None if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes


def _os_error(number: int, path: Path | str) -> OSError:
    return OSError(number, os.strerror(number), str(path))
