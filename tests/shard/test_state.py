"""The state machine of a shard, by scripts: steps on the left, the state or the refusal on the right.

create                      the shard is created
append 0 2 p=5@0 q=7@0-1    [0, 2) with parts p (digest 5, time 0) and q (digest 7, times 0 to 1)
compact 0 2 s=1 r=12@1 -p -q    [0, 2), times moved up to 1, becomes part r; blobs p and q are removed
since 1, forget w, finalize

A state is written `since/upper`, then each batch as `lower-upper` with `^since` if times were moved up, and its parts.
"""

from __future__ import annotations

import re

import pytest

from evertide.errors import RecordDamaged
from evertide.shard.parts.part import Part
from evertide.shard.state import (
    Appended,
    Batch,
    Compacted,
    Created,
    Diff,
    Finalized,
    Forgotten,
    LogEntry,
    ShardState,
    SinceAdvanced,
    apply,
    parts_removed,
)
from evertide.types import Time

_PART = re.compile(r"(?P<key>\w+)=(?P<digest>-?\d+)@(?P<min>\d+)(-(?P<max>\d+))?")


def part(text: str) -> Part:
    found = _PART.fullmatch(text)
    assert found, text
    times = (int(found["min"]), int(found["max"] or found["min"]))
    digest = f"{int(found['digest']) % 2**128:032x}"
    return Part(1, 10, "c", digest, 1, 0, *times, {}, key=found["key"])


def diff(step: str) -> Diff:
    kind, *words = step.split()
    if kind == "create":
        return Created("a", b"schema")
    if kind == "since":
        return SinceAdvanced(Time(int(words[0])))
    if kind == "forget":
        return Forgotten(tuple(words))
    if kind == "finalize":
        return Finalized(tuple(word[1:] for word in words))
    lower, upper, *rest = words
    parts = tuple(part(word) for word in rest if "@" in word)
    if kind == "append":
        return Appended(Time(int(lower)), Time(int(upper)), parts)
    since = next(int(word[2:]) for word in rest if word.startswith("s="))
    removed = tuple(word[1:] for word in rest if word.startswith("-"))
    return Compacted(Batch(Time(int(lower)), Time(int(upper)), parts, Time(since)), removed)


def run(script: str) -> ShardState:
    state: ShardState | None = None
    for number, step in enumerate(script.split(";"), 1):
        state = apply(state, LogEntry("w", str(number), diff(step.strip())), f"there #{number}")
    assert state is not None
    return state


def format_state(state: ShardState) -> str:
    batches = [
        f"{b.lower}-{b.upper}" + (f"^{b.since}" if b.since else "") + "".join(f" {p.key}" for p in b.parts)
        for b in state.batches
    ]
    end = ["finalized"] if state.finalized else []
    return ", ".join([f"{state.since}/{state.upper}", *batches, *end])


GOOD = """
create                                                                              | 0/0
create; append 0 1                                                                  | 0/1
create; append 0 1 p=5@0                                                            | 0/1, 0-1 p
create; append 0 5 p=5@0 q=7@3-4                                                    | 0/5, 0-5 p q
create; append 0 1 p=5@0; append 1 4; append 4 5 q=7@4                              | 0/5, 0-1 p, 4-5 q
create; append 0 1 p=5@0; append 1 2 q=7@1; since 1                                 | 1/2, 0-1 p, 1-2 q
create; append 0 3; since 2; since 2                                                | 2/3
create; since 0                                                                     | 0/0
create; append 0 1 p=5@0; append 1 2 q=7@1; compact 0 2 s=0 r=12@0-1 -p -q          | 0/2, 0-2 r
create; append 0 1 p=5@0; append 1 2 q=7@1; since 1; compact 0 2 s=1 r=12@1 -p -q   | 1/2, 0-2^1 r
create; append 0 1 p=5@0; append 1 5; since 4; compact 0 1 s=4 r=5@4 -p             | 4/5, 0-1^4 r
create; append 0 1 p=5@0; append 1 2 q=7@1; compact 0 1 s=0 r=5@0 -p                | 0/2, 0-1 r, 1-2 q
create; append 0 1 p=5@0; append 1 2 q=7@1; compact 1 2 s=0 r=7@1 -q                | 0/2, 0-1 p, 1-2 r
create; append 0 1 p=5@0; append 1 2 q=7@1; append 2 3 x=1@2; compact 0 2 s=0 r=12@0-1 -p -q | 0/3, 0-2 r, 2-3 x
create; append 0 1 p=5@0; finalize -p                                               | 0/1, finalized
create; append 0 1; finalize; forget w                                              | 0/1, finalized
"""

BAD = """
create; create                                                     | 0 it creates the shard a second time
append 0 1                                                         | 0 does not begin with the creation
since 0                                                            | 0 does not begin with the creation
create; append 1 2                                                 | 1 append of [1, 2) at upper 0: a gap
create; append 0 2 p=5@0; append 0 2 q=5@0                         | 1 append of [0, 2) at upper 2: written twice
create; append 0 2; append 1 3                                     | 1 append of [1, 3) at upper 2: an overlap
create; append 0 2; append 2 1                                     | 1 append of [2, 1) at upper 2: backwards
create; append 0 0 p=5@0                                           | 1 append of [0, 0) at upper 0: changes at no time
create; append 0 5; since 3; since 2                               | 2 it moves since from 3 to 2
create; append 0 5; since 5                                        | 2 it moves since from 0 to 5
create; since 1                                                    | 2 it moves since from 0 to 1
create; append 0 2 p=5@2                                           | 3 a part with times that its batch has not
create; append 0 2; append 2 4 p=5@0-3                             | 3 a part with times that its batch has not
create; append 0 2 p=5@0; compact 0 2 s=0 r=5@0-4 -p               | 3 a part with times that its batch has not
create; append 0 2 p=5@0; append 2 3; compact 0 2 s=2 r=5@2 -p     | 3 moved up beyond since
create; append 0 2 p=5@0; compact 0 2 s=0 r=6@0 -p                 | 4 compaction of [0, 2) changes the digest
create; append 0 2 p=5@0; compact 0 2 s=0 -p                       | 4 compaction of [0, 2) changes the digest
create; append 0 2 p=5@0; append 2 3 q=7@2; compact 0 3 s=0 r=5@0 -p | 4 changes the digest: swallows q
create; append 0 2 p=5@0; compact 0 2 s=0 r=5@0 -x                 | 4 it replaces batches that the state does not have
create; append 0 2; compact 0 2 s=0 r=0@0                          | 4 it replaces batches that the state does not have
create; append 0 2 p=5@0; append 2 4 q=0@2; compact 0 3 s=0 r=5@0 -p -q | 4 a batch that lies in it only in part
create; append 0 2 p=5@0 q=0@0; compact 0 2 s=0 r=5@0 -p           | 4 forgets to name blob q, which is gone
create; append 0 1; finalize; append 1 2                           | 5 it changes a finalized shard
create; append 0 1; finalize; since 0                              | 5 it changes a finalized shard
create; append 0 1; finalize; finalize                             | 5 it changes a finalized shard
create; append 0 1 p=5@0; finalize -p; compact 0 1 s=0 r=5@0 -p    | 5 it changes a finalized shard
"""


def cases(table: str) -> list[tuple[str, str]]:
    return [(left.strip(), right.strip()) for left, _, right in (r.partition("|") for r in table.strip().splitlines())]


@pytest.mark.parametrize(("script", "expected"), cases(GOOD))
def test_valid_diffs_are_applied(script: str, expected: str) -> None:
    assert format_state(run(script)) == expected


@pytest.mark.parametrize(("script", "expected"), cases(BAD))
def test_a_diff_that_breaks_an_invariant_is_damage(script: str, expected: str) -> None:
    """The number is the invariant of `evertide.shard.state` (0: the log's form); only the last step breaks it.

    Fails without each `_demand` of the module.
    """
    *before, _last = script.split(";")
    if before:
        run(";".join(before))
    with pytest.raises(RecordDamaged) as damage:
        run(script)
    assert damage.value.path == f"there #{len(before) + 1}"
    assert damage.value.remedy in str(damage.value)


def test_tokens_are_known_until_they_are_settled_or_their_writer_is_forgotten() -> None:
    """A writer looks up several at once, from its threads. Fails if only the last token is kept."""
    state = apply(None, LogEntry("v", "1", diff("create")), "there")
    for token, settled in (("7", 7), ("9", 7), ("8", 7)):
        state = apply(state, LogEntry("w", token, diff(f"append {state.upper} {state.upper + 1}"), settled), "there")
    assert state.tokens == {"v": ("1",), "w": ("7", "9", "8")}
    state = apply(state, LogEntry("w", "10", diff("since 0"), 9), "there")
    assert state.tokens == {"v": ("1",), "w": ("9", "10")}, "compared by number, not by text"
    state = apply(state, LogEntry("w", "11", diff("forget v"), 11), "there")
    assert state.tokens == {"w": ("11",)}


def test_the_old_state_stays_as_it_was() -> None:
    before = run("create; append 0 1 p=5@0")
    copy = format_state(before), dict(before.tokens)
    apply(before, LogEntry("w", "9", diff("append 1 2 q=7@1")), "there")
    apply(before, LogEntry("w", "9", diff("finalize -p")), "there")
    assert (format_state(before), before.tokens) == copy


def test_garbage_collection_may_delete_the_parts_that_a_diff_removes() -> None:
    assert parts_removed(diff("compact 0 2 s=0 r=12@0-1 -p -q")) == ("p", "q")
    assert parts_removed(diff("finalize -p")) == ("p",)
    assert parts_removed(diff("append 0 1 p=5@0")) == ()


def test_digests_of_parts_add_up_modulo_two_to_the_128() -> None:
    state = run("create; append 0 1 p=-3@0 q=5@0")
    assert int(state.batches[0].digest, 16) == 2
    assert format_state(run("create; append 0 1 p=-3@0 q=5@0; compact 0 1 s=0 r=2@0 -p -q")) == "0/1, 0-1 r"
