"""The files and directories of a `SimulatedDisk`, and the effect of a power cut on them (rules: `disk`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from tests.kit.runtime import RandomStream

Survivors = Literal["none", "all", "names"] | int
Node: TypeAlias = "File | Directory"


class Fate:
    """Decides which changes survive a power cut (rule 7 of the disk)."""

    def __init__(self, survivors: Survivors, operations: int) -> None:
        self._survivors = survivors
        self._chance = RandomStream(survivors if isinstance(survivors, int) else 0).fork(operations)

    def keeps(self) -> bool:
        if isinstance(self._survivors, int):
            return self._chance.below(2) == 0
        return self._survivors != "none"

    def torn(self, data: bytes) -> bytes:
        if not isinstance(self._survivors, int):
            return data if self._survivors == "all" else b""
        garbage = self._chance.bits().to_bytes(8, "big") * (len(data) // 8 + 1)
        prefix = data[: self._chance.below(len(data) + 1)]
        outcomes = (data, b"", prefix, bytes(len(data)), garbage[: len(data)])
        return outcomes[self._chance.below(len(outcomes))]


@dataclass(slots=True, eq=False, kw_only=True)
class Written:
    """A write that a sync makes durable, or loses if the sync fails (rule 4 of the disk)."""

    state: Literal["new", "durable", "lost"] = "new"

    def sync(self, state: Literal["durable", "lost"]) -> None:
        if self.state == "new":
            self.state = state


@dataclass(slots=True, eq=False)
class File(Written):
    data: bytes

    def settle(self, fate: Fate) -> None:
        if self.state != "durable":
            self.data, self.state = fate.torn(self.data), "durable"


@dataclass(slots=True, eq=False)
class Change(Written):
    """Gives `node` the last of these names and removes its others; without a node, removes the name."""

    names: tuple[str, ...]
    node: Node | None

    def apply(self, names: dict[str, Node]) -> None:
        for name in [name for name, node in names.items() if node is self.node or name == self.names[-1]]:
            del names[name]
        if self.node is not None:
            names[self.names[-1]] = self.node


@dataclass(slots=True, eq=False)
class Directory:
    """`names` is the current content: the durable content `kept`, with `changes` applied in order."""

    data: ClassVar[bytes] = b""
    names: dict[str, Node] = field(default_factory=dict)
    kept: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def change(self, node: Node | None, *names: str) -> None:
        self.changes.append(Change(names, node))
        self.changes[-1].apply(self.names)

    def sync(self, state: Literal["durable", "lost"]) -> None:
        for change in self.changes:
            change.sync(state)
        while self.changes and self.changes[0].state == "durable":  # changes behind a lost one wait, to keep the order
            self.changes.pop(0).apply(self.kept)

    def settle(self, fate: Fate) -> None:
        for change in self._survivors(fate):
            change.apply(self.kept)
        self.changes.clear()
        self.names = dict(self.kept)
        for name in sorted(self.names):
            self.names[name].settle(fate)

    def _survivors(self, fate: Fate) -> list[Change]:
        """The changes that survive. A change always survives if a later one with a common name does."""
        survivors: list[Change] = []
        names: set[str] = set()
        for change in reversed(self.changes):
            if change.state == "durable" or fate.keeps() or not names.isdisjoint(change.names):
                survivors.append(change)
                names.update(change.names)
        return survivors[::-1]

    def all_bytes(self) -> int:
        nodes = self.names.values()
        return sum(node.all_bytes() if isinstance(node, Directory) else len(node.data) for node in nodes)
