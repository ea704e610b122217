"""Restricts a worker process to its storage and the programs that it needs, enforced by the Linux kernel.

The worker drops its own access before it starts a thread or opens anything. The restrictions also apply to its
children, and cannot be lifted.

1. Files (Landlock): the worker may change its storage and its scratch directory, and read what programs need to run,
   the files that its environment names, and the paths in `EVERTIDE_QUERY_FILES`. It cannot read the environment or the
   memory of other processes.
2. Network, if the storage is a local directory: a DuckDB worker cannot create a socket (seccomp). Spark's processes
   communicate with each other, so they get a network namespace that has only a loopback interface.
3. Privileges: a worker of root keeps only the capabilities for files, within the limits of 1.
4. A restriction that the system does not support (old kernel, container without namespaces, not Linux) is reported with
   its reason in `Isolation.lacks`. The list of functions that a query may call protects independently of all this.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NAMESPACE_USER, _NAMESPACE_NET = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _FLAG_UP = 0x8913, 0x8914, 0x1
_NO_NEW_PRIVS, _SECCOMP, _SECCOMP_FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, with the same numbers on every architecture."""
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _LIST
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
"""The rights that apply to a file that is not a directory."""
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE, 5: _IOCTL}
"""Rights by the version of Landlock that added them. Before version 2, files cannot move between directories."""
_SCOPED = 0b11
"""No signals to processes outside, and no access to their abstract sockets: since version 6."""
_LANDLOCK_MIN, _LANDLOCK_SCOPED = 2, 6
_CAPABILITIES_VERSION = 0x20080522
_KEPT_CAPABILITIES = 0b11111
"""The first five: to change, read and search files of other users."""
_EXTRA_VARIABLE = "EVERTIDE_QUERY_FILES"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt/java", "/proc", "/sys", "/nix/store")
_ETC = """
alternatives ca-certificates crypto-policies gai.conf group host.conf hostname hosts java-11-openjdk java-17-openjdk
java-21-openjdk java-25-openjdk ld.so.cache ld.so.conf ld.so.conf.d locale.alias localtime mime.types nsswitch.conf
os-release passwd pki protocols resolv.conf services ssl timezone
"""
"""Readable files in `/etc`; not, for example, `shadow`."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_OF_USER = (".aws", ".pgpass", ".postgresql")
"""Files in the home directory that clients of S3 and PostgreSQL read."""
_PATH = re.compile(r"/[^\s:=,;'\"]+")
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""The number that seccomp uses for the architecture, and the number of the system call `socket`."""
_IO_URING_SETUP = 425
"""io_uring could create sockets without the call `socket`."""
_X32 = 0x40000000
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 13
"""Refused with EACCES, like a kernel firewall."""


@dataclass(frozen=True, slots=True)
class NeededAccess:
    storage: str
    """A directory, or a URL."""
    scratch: str
    has_network: bool
    """Whether the worker needs the network, for its storage or for Spark's master."""
    has_processes: bool
    """Whether the worker communicates with child processes."""
    environment: Mapping[str, str] = field(repr=False)


@dataclass(slots=True)
class Isolation:
    """The restrictions ('files', 'network', 'privileges') in force, with the mechanism; the others, with the reason."""

    has: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)


def isolate(needed: NeededAccess) -> Isolation:
    """Apply the restrictions. The process must have a single thread."""
    isolation = Isolation()
    if needed.has_network:
        isolation.lacks["network"] = "the worker needs it for the storage or for Spark's master"
    elif needed.has_processes:
        _apply(isolation, "network", "namespace", _leave_network)
    else:
        _apply(isolation, "network", "seccomp", _forbid_sockets)
    _apply(isolation, "files", "landlock", lambda: _restrict_files(needed))
    _apply(isolation, "privileges", "capabilities", _drop_privileges)
    return isolation


def _apply(isolation: Isolation, what: str, how: str, do: Callable[[], None]) -> None:
    if sys.platform != "linux":
        isolation.lacks[what] = f"{sys.platform} has no {how}"
        return
    try:
        do()
        isolation.has[what] = how
    except OSError as error:
        isolation.lacks[what] = f"{how}: {error.strerror or error}"


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _call_system(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments))


def _forbid_new_privileges() -> None:
    """Keep children from gaining privileges, which seccomp and Landlock require first."""
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def _leave_network() -> None:
    user, group = os.getuid(), os.getgid()
    try:
        _check(_libc.unshare(_NAMESPACE_NET))
    except PermissionError:  # without root: allowed inside a new user namespace
        _check(_libc.unshare(_NAMESPACE_USER | _NAMESPACE_NET))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", flags | _FLAG_UP))


def _forbid_sockets() -> None:
    found = _ARCHITECTURES.get(platform.machine())
    if found is None:
        raise OSError(0, f"not known for {platform.machine()}")
    architecture, socket_call = found
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    program = (
        (load, 0, 0, 4),
        (equal, 0, 5, architecture),
        (load, 0, 0, 0),
        (at_least, 3, 0, _X32),
        (equal, 2, 0, socket_call),
        (equal, 1, 0, _IO_URING_SETUP),
        (give, 0, 0, _ALLOW),
        (give, 0, 0, _REFUSE),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    _forbid_new_privileges()
    _check(_libc.prctl(_SECCOMP, _SECCOMP_FILTER, ctypes.byref(head), 0, 0))


def _drop_privileges() -> None:
    header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
    held = ctypes.create_string_buffer(struct.calcsize("6I"))
    _check(_libc.capget(header, held))
    _, permitted, *_ = struct.unpack("6I", held.raw)
    capabilities = permitted & _KEPT_CAPABILITIES
    _check(_libc.capset(header, struct.pack("6I", capabilities, capabilities, 0, 0, 0, 0)))


def _restrict_files(needed: NeededAccess) -> None:
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        raise OSError(0, "the process has other threads, which would keep their rights")
    version = _call_system(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < _LANDLOCK_MIN:
        raise OSError(0, f"version {version} is too old")
    rights = sum(right for since, right in _RIGHTS.items() if since <= version)
    scoped = _SCOPED if version >= _LANDLOCK_SCOPED else 0
    attributes = struct.pack("QQQ", rights, 0, scoped)
    size = 24 if scoped else 8
    rules = _call_system(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in _list_readable(needed):
            _allow(rules, path, _READING)
        for path in _DEVICES:
            _allow(rules, path, (_READ | _WRITE | _IOCTL) & rights)
        for path in (needed.storage, needed.scratch):
            _allow(rules, path, rights & ~_EXECUTE)
        _forbid_new_privileges()
        _call_system(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _list_readable(needed: NeededAccess) -> Iterable[str]:
    yield from _SYSTEM
    yield from (f"/etc/{name}" for name in _ETC.split())
    yield from filter(None, needed.environment.get(_EXTRA_VARIABLE, "").split(os.pathsep))
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[2]), *filter(None, sys.path))
    if (java := shutil.which("java")) is not None:
        yield str(Path(java).resolve().parents[1])
    home = needed.environment.get("HOME")
    if needed.has_network and home:
        yield from (f"{home}/{name}" for name in _OF_USER)
    for name, value in needed.environment.items():
        if name != "HOME":
            yield from _PATH.findall(value)


def _allow(rules: int, path: str, rights: int) -> None:
    """No effect if the path does not exist."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_directory = Path(path).is_dir()
        rule = struct.pack("=Qi", rights if is_directory else rights & _OF_FILES, place)
        _call_system(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)
