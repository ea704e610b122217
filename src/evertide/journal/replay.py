"""Compare a replay with what was recorded (I8): pure functions, without IO.

Three times describe a process after a restart: its *restored* state has every transaction below the first, the shards
below the second (*committed*), the journal below the third (*bound*).

1. restored <= committed <= bound, or storage is damaged.
2. Transactions in [restored, committed) are replayed: their table deltas come from the shards (or from the source, for
   a table with `evertide.keep = 'none'`), and the result is compared with the record. Nothing is appended.
3. Transactions in [committed, bound) are completed: their bound input is read, computed and appended.
4. Consecutive transactions can be replayed as one (`ReplayStretch`): digests add up, so comparing the sum checks all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from evertide.errors import Damaged, Diverged, Unexpected
from evertide.journal.records import Bound, Committed, Content
from evertide.rows.digest import add_digests
from evertide.types import Time

_STRETCH_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ReplayStretch:
    """Consecutive transactions that are replayed in one step, as they were bound and recorded."""

    bound: tuple[Bound, ...]
    records: tuple[Committed, ...]

    @classmethod
    def take(cls, transactions: Iterable[tuple[Bound, Committed]], rows_max: int) -> ReplayStretch:
        """Take the first transaction and those after it that can join its group, up to `rows_max` rows."""
        found: list[tuple[Bound, Committed]] = []
        rows = 0
        for bound, recorded in transactions:
            if found and not _can_join(found[0], (bound, recorded)):
                break
            found.append((bound, recorded))
            rows += sum(content.rows for content in recorded.shards.values())
            if rows >= rows_max or len(found) == _STRETCH_MAX:
                break
        return cls(tuple(bound for bound, _ in found), tuple(recorded for _, recorded in found))

    @property
    def time(self) -> Time:
        return self.bound[0].time

    @property
    def upper(self) -> Time:
        return Time(self.time + len(self.bound))

    @property
    def recorded(self) -> Committed:
        """The sum of the records, as if they were one transaction computed in as many portions."""
        if len(self.records) == 1:
            return self.records[0]
        return msgspec.structs.replace(
            self.records[0],
            sources=_add_contents([record.sources for record in self.records]),
            shards=_add_contents([record.shards for record in self.records]),
            portions=len(self.records),
        )


def _can_join(first: tuple[Bound, Committed], other: tuple[Bound, Committed]) -> bool:
    """Return whether both have the same generation, sources and shards, and neither was computed in portions."""
    (bound, recorded), (later, other_recorded) = first, other
    return (
        bound.generation == later.generation
        and bound.inputs.keys() == later.inputs.keys()
        and recorded.shards.keys() == other_recorded.shards.keys()
        and recorded.portions == other_recorded.portions == 1
    )


def _add_contents(several: Sequence[Mapping[str, Content]]) -> dict[str, Content]:
    found = dict(several[0])
    for contents in several[1:]:
        for name, content in contents.items():
            before = found[name]
            found[name] = Content(before.rows + content.rows, add_digests(before.digest, content.digest))
    return found


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of replaying `count` transactions from `time` on, by source and by shard.

    It names all sources and shards of the generation. None means not compared: the source of a kept table, because
    the rows come from the shard.
    """

    time: int
    sources: Mapping[str, Content | None] = field(default_factory=dict)
    shards: Mapping[str, Content | None] = field(default_factory=dict)
    count: int = 1


def check_times(restored: int, committed: int, bound: int, path: str) -> None:
    """Raise `Damaged` if the three times of a restart cannot all be true. `path` is where the journal is stored."""
    if restored > committed:
        why = f"the restored state has transactions {committed} to {restored - 1}, which no shard has"
        raise Damaged(path=path, why=why)
    if committed > bound:
        raise Damaged(path=path, why=f"transactions {bound} to {committed - 1} are committed, but no record binds them")


def check_replay(result: ReplayResult, recorded: Committed) -> None:
    """Raise `Diverged` if the contents differ from the record."""
    if result.time != recorded.time:
        why = f"the result of transaction {result.time} was compared with the record of transaction {recorded.time}"
        raise Unexpected(where="check_replay", why=why)
    _check_names("source", result.sources, recorded.sources, recorded.time)
    _check_names("shard", result.shards, recorded.shards, recorded.time)
    for error in _compare("source", result.sources, recorded.sources, recorded.time).values():
        raise error
    for error in find_divergences(result, recorded).values():
        raise error


def find_divergences(result: ReplayResult, recorded: Committed) -> dict[str, Diverged]:
    """By name, an error for each shard whose content differs from the record."""
    if recorded.portions > 1:  # how many rows cancel out depends on where the portions end
        recorded = _ignore_rows(result, recorded)
    return _compare("shard", result.shards, recorded.shards, recorded.time)


def _check_names(kind: str, computed: Mapping[str, Content | None], recorded: Mapping[str, Content], time: int) -> None:
    if computed.keys() != recorded.keys():
        why = f"transaction {time} has the {kind}s {sorted(recorded)}, but the replay computed {sorted(computed)}"
        raise Unexpected(where="check_replay", why=why)


def _compare(
    kind: str, computed: Mapping[str, Content | None], recorded: Mapping[str, Content], time: int
) -> dict[str, Diverged]:
    differ = {}
    for name in sorted(recorded):
        content, expected = computed.get(name), recorded[name]
        if content is not None and content != expected:
            where = f"{kind} {name!r}"
            differ[name] = Diverged(where=where, time=time, expected=_describe(expected), found=_describe(content))
    return differ


def _ignore_rows(result: ReplayResult, recorded: Committed) -> Committed:
    rows = {name: content.rows for name, content in result.shards.items() if content is not None}
    shards = {name: Content(rows.get(name, known.rows), known.digest) for name, known in recorded.shards.items()}
    return msgspec.structs.replace(recorded, shards=shards)


def _describe(content: Content) -> str:
    return f"{content.rows} rows, digest {content.digest}"
