"""A blob storage on disk that misbehaves for the tasks of a wide step, as files tell: tasks run in other processes.

A rule applies to calls of executors, for keys that a regular expression finds. Each time it is written down.

    unavailable   the call raises `Unavailable`, and does nothing
    unknown       the call does its work, and raises `OutcomeUnknown`
    damaged       a byte of what is read differs
    break         the call does its work, and the task fails by an error that is not one of storage
    hold          the call waits until the rules are removed
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pyspark import TaskContext

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.runtime import SystemRuntime
from evertide.store.blobs.local import LocalBlob

_T = TypeVar("_T")
EXCHANGED = r"^state/wide\.exchange/"
STATE = r"^state/(?!wide\.)"
CONTENT = "^parts/"


class Rule(msgspec.Struct, frozen=True):
    does: str
    call: str
    """`put`, `get` or `get_range`."""
    key: str
    times: int = 1_000_000
    below: str = ""
    """The name of a function: only calls that it makes, directly or not."""


class Event(msgspec.Struct, frozen=True):
    does: str
    key: str
    process: int


class Control:
    """The files by which a test controls the storage. `folder` must exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rules, self._events, self._counts = folder / "rules", folder / "events", folder / "counts"

    def set_rules(self, *rules: Rule) -> None:
        self._counts.mkdir(exist_ok=True)
        written = self._rules.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(rules))
        written.rename(self._rules)

    def clear(self) -> None:
        self._rules.unlink(missing_ok=True)

    def read_events(self, does: str = "") -> list[Event]:
        lines = self._events.read_bytes().splitlines() if self._events.exists() else []
        events = [msgspec.json.decode(line, type=Event) for line in lines]
        return [event for event in events if does in {"", event.does}]

    def find_rule(self, call: str, key: str) -> Rule | None:
        """The rule for a call, which is counted and written down."""
        if TaskContext.get() is None:
            return None
        for at, rule in enumerate(self._read_rules()):
            is_meant = rule.call == call and re.search(rule.key, key) and _is_below(rule.below)
            if is_meant and self._count(at, rule):
                line = msgspec.json.encode(Event(rule.does, key, os.getpid())) + b"\n"
                with self._events.open("ab", buffering=0) as events:
                    events.write(line)
                return rule
        return None

    def wait_while_held(self) -> None:
        while self._rules.exists():
            SystemRuntime().sleep_s(0.02)

    def _read_rules(self) -> list[Rule]:
        try:
            return msgspec.json.decode(self._rules.read_bytes(), type=list[Rule])
        except FileNotFoundError:
            return []

    def _count(self, at: int, rule: Rule) -> bool:
        for number in range(rule.times):
            try:
                (self._counts / f"{at}-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


def _is_below(function: str) -> bool:
    frames = (frame.f_code.co_name for frame, _ in traceback.walk_stack(None))
    return not function or function in frames


class UnreliableBlob(LocalBlob):
    def __init__(self, root: Path, control: Control) -> None:
        super().__init__(root)
        self.control = control

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "control": self.control}

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: super(UnreliableBlob, self).get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: super(UnreliableBlob, self).get_range(key, offset, length))

    def put(self, key: str, data: bytes) -> None:
        self._call("put", key, lambda: super(UnreliableBlob, self).put(key, data))

    def _call(self, call: str, key: str, work: Callable[[], _T]) -> _T:
        rule = self.control.find_rule(call, key)
        does = "" if rule is None else rule.does
        if does == "unavailable":
            raise Unavailable(path=self.path(key), why="a rule of the test")
        if does == "hold":
            self.control.wait_while_held()
        found = work()
        if does == "unknown":
            raise OutcomeUnknown(path=self.path(key), why="a rule of the test")
        if does == "break":
            raise RuntimeError("a rule of the test")
        if does == "damaged" and isinstance(found, bytes):
            at = len(found) // 2
            return bytes([*found[:at], found[at] ^ 1, *found[at + 1 :]])  # type: ignore[return-value]
        return found
