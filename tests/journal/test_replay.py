"""The state machine of a restart, and the comparison of what a replay came to (J4, J11)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from evertide.errors import Damaged, Diverged, InvalidInput, SourceFailed
from evertide.journal.records import Bound, Committed, Content, Input
from evertide.journal.replay import Found, Progress, Replay, State, Stretch, check
from evertide.types import Generation, Time

ONE, OTHER = Content(1, "0" * 31 + "1"), Content(1, "0" * 31 + "2")


def recorded(time: int = 0) -> Committed:
    return Committed(Time(time), {"files": ONE, "push": ONE}, {"orders": ONE, "revenue": OTHER}, "w")


def found(time: int = 0, **changed: Content | None) -> Found:
    """As recorded, but for what is given."""
    record = recorded(time)
    return Found(
        time,
        {name: changed.get(name, content) for name, content in record.sources.items()},
        {name: changed.get(name, content) for name, content in record.shards.items()},
    )


def replay(restored: int = 2, committed: int = 4, bound: int = 6) -> Replay:
    return Replay(restored=restored, committed=committed, bound=bound, path="there")


# The states


def test_each_time_has_its_state() -> None:
    """Replayed up to what the shards have, completed up to what is bound, then run."""
    machine = replay()
    done = []
    while machine.state is not State.RUN:
        done.append((machine.time, machine.state))
        if machine.state is State.REPLAY:
            machine.replayed(found(machine.time), recorded(machine.time))
        else:
            machine.completed(machine.time)
    assert done == [(2, State.REPLAY), (3, State.REPLAY), (4, State.COMPLETE), (5, State.COMPLETE)]
    assert (machine.time, machine.committed, machine.bound) == (6, 6, 6)


@pytest.mark.parametrize(("restored", "committed", "bound"), list(itertools.product(range(4), repeat=3)))
def test_the_state_follows_from_the_three_times(restored: int, committed: int, bound: int) -> None:
    """Every combination: an impossible one is damage, and says which."""
    if restored <= committed <= bound:
        expected = State.RUN if restored == bound else State.COMPLETE if restored == committed else State.REPLAY
        assert replay(restored, committed, bound).state is expected
        return
    with pytest.raises(Damaged) as error:
        replay(restored, committed, bound)
    assert error.value.path == "there"
    if committed > bound:
        assert f"transactions {bound} to {committed - 1} are in the shards, and were never bound" in error.value.why
    else:
        assert f"holds transactions {committed} to {restored - 1}, which the shards do not have" in error.value.why


def test_a_time_below_zero_is_damage() -> None:
    with pytest.raises(Damaged, match="times are 0 and up"):
        replay(-1, 0, 0)


def test_progress() -> None:
    machine = replay()
    assert machine.progress == Progress(0, 4)
    machine.replayed(found(2), recorded(2))
    assert machine.progress == Progress(1, 4)
    machine.seen(committed=4, bound=8)
    assert machine.progress == Progress(1, 6)
    assert replay(3, 3, 3).progress == Progress(0, 0)


def test_a_peer_that_commits_first_turns_complete_into_replay() -> None:
    """What we would have appended is compared instead. News that is older than ours changes nothing."""
    machine = replay(4, 4, 5)
    assert machine.state is State.COMPLETE
    assert machine.seen(committed=5, bound=5) is State.REPLAY
    assert machine.seen(committed=3, bound=4) is State.REPLAY
    assert machine.replayed(found(4), recorded(4)) is State.RUN
    assert machine.seen(committed=5, bound=6) is State.COMPLETE
    assert machine.completed(5) is State.RUN
    assert machine.seen(committed=8, bound=8) is State.REPLAY


def test_news_that_cannot_be_true_is_damage_and_ends_it() -> None:
    machine = replay()
    with pytest.raises(Damaged, match="never bound"):
        machine.seen(committed=9, bound=6)
    assert machine.state is State.FAILED


def test_what_a_state_does_not_allow_is_refused() -> None:
    """Seen to fail without `_demand`: an append of what the shards have, or a time left out."""
    machine = replay()
    with pytest.raises(InvalidInput, match="to replay, not to complete"):
        machine.completed(2)
    with pytest.raises(InvalidInput, match="transaction 2 is next"):
        machine.replayed(found(3), recorded(3))
    complete = replay(4, 4, 6)
    with pytest.raises(InvalidInput, match="to complete, not to replay"):
        complete.replayed(found(4), recorded(4))
    with pytest.raises(InvalidInput, match="transaction 4 is next"):
        complete.completed(5)
    with pytest.raises(InvalidInput, match="to run, not to complete"):
        replay(6, 6, 6).completed(6)
    assert (machine.state, complete.state) == (State.REPLAY, State.COMPLETE), "a refusal changes nothing"


def ended_by_divergence() -> Replay:
    machine = replay()
    with pytest.raises(Diverged):
        machine.replayed(found(2, revenue=ONE), recorded(2))
    assert machine.state is State.DIVERGED
    return machine


def ended_by_a_name() -> Replay:
    machine = replay()
    with pytest.raises(InvalidInput):
        machine.replayed(Found(2, {}, {}), recorded(2))
    assert machine.state is State.FAILED
    return machine


def ended_by_failure() -> Replay:
    machine = replay()
    machine.fail(SourceFailed(source="files", where="a.csv", why="no permission"))
    assert machine.state is State.FAILED
    return machine


def ended_by_a_divergence_found_elsewhere() -> Replay:
    machine = replay(4, 4, 6)
    machine.fail(Diverged(where="shard 'revenue'", time=4, expected="a", found="b"))
    assert machine.state is State.DIVERGED
    return machine


@pytest.mark.parametrize(
    "ended", [ended_by_divergence, ended_by_a_name, ended_by_failure, ended_by_a_divergence_found_elsewhere]
)
def test_an_ended_replay_accepts_nothing_more(ended: Callable[[], Replay]) -> None:
    """I8: whoever diverged commits nothing more. Seen to fail without the error in `_demand`."""
    machine = ended()
    state, time, error = machine.state, machine.time, machine.error
    assert error is not None
    acts: list[Callable[[], State]] = [
        lambda: machine.seen(committed=9, bound=9),
        lambda: machine.replayed(found(time), recorded(time)),
        lambda: machine.completed(time),
        lambda: machine.fail(InvalidInput(where="x", why="y")),
    ]
    for act in acts:
        with pytest.raises(type(error)) as again:
            act()
        assert again.value is error
    assert (machine.state, machine.time) == (state, time)


# The comparison


def test_what_agrees_passes() -> None:
    check(found(7), recorded(7))
    check(found(7, files=None, revenue=None), recorded(7))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("files", "source 'files'"),
        ("push", "source 'push'"),
        ("orders", "shard 'orders'"),
        ("revenue", "shard 'revenue'"),
    ],
)
@pytest.mark.parametrize("said", [Content(2, ONE.digest), Content(1, "f" * 32), Content(0, "0" * 32)])
def test_j4_a_difference_is_divergence_and_names_everything(name: str, where: str, said: Content) -> None:
    """Source or shard, transaction, expected and found, count and digest.

    Seen to fail with only the counts compared, and with only the digests.
    """
    expected = {**recorded().sources, **recorded().shards}[name]
    with pytest.raises(Diverged) as error:
        check(found(5, **{name: said}), recorded(5))
    assert (error.value.where, error.value.time) == (where, 5)
    assert error.value.expected == f"{expected.rows} rows, digest {expected.digest}"
    assert error.value.found == f"{said.rows} rows, digest {said.digest}"


def test_j4_for_a_kept_table_what_its_source_says_now_does_not_matter() -> None:
    """Its source is not looked at, as the shard has the rows; it must still be there by name."""
    check(found(5, files=None), recorded(5))
    with pytest.raises(InvalidInput, match="source 'files'"):
        check(Found(5, {"push": ONE}, recorded().shards), recorded(5))


@pytest.mark.parametrize("kind", ["source", "shard"])
def test_j4_a_name_in_one_and_not_in_the_other_has_an_error_of_its_own(kind: str) -> None:
    """Seen to fail with only the names that both have compared."""
    record = recorded(5)
    names = record.sources if kind == "source" else record.shards
    for given, where, why in (
        ({**names, "new": ONE}, "new", "the pipeline has it, and the record of transaction 5 does not name it"),
        (dict(list(names.items())[1:]), next(iter(names)), "names it, and the pipeline lacks it"),
    ):
        what = Found(5, given, dict(record.shards)) if kind == "source" else Found(5, dict(record.sources), given)
        with pytest.raises(InvalidInput) as error:
            check(what, record)
        assert error.value.where == f"{kind} {where!r}"
        assert why in error.value.why


def test_the_wrong_record_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"transaction 4.*record of transaction 5"):
        check(found(4), recorded(5))


# Stretches


def bound(time: int, generation: int = 3, sources: str = "push") -> Bound:
    return Bound(
        Time(time), Generation(generation), dict.fromkeys(sources.split(), Input("a", "b")), "w", f"t{time}", 0.0
    )


def stretched(*transactions: tuple[Bound, Committed], rows_max: int = 100) -> Stretch:
    return Stretch.of(transactions, rows_max)


def test_a_stretch_is_of_transactions_that_are_alike() -> None:
    alike = [(bound(time), recorded(time)) for time in range(4)]
    assert (stretched(*alike).time, stretched(*alike).upper) == (0, 4)
    assert stretched(*alike, rows_max=3).upper == 2, "each has two rows"
    assert stretched(*alike, rows_max=0).upper == 1, "one at least"
    in_portions = msgspec.structs.replace(recorded(4), portions=2)
    others = [
        (bound(4, generation=4), recorded(4)),
        (bound(4, sources="push files"), recorded(4)),
        (bound(4), Committed(Time(4), {"push": ONE}, {"orders": ONE}, "w")),
        (bound(4), in_portions),
    ]
    for other in others:
        assert stretched(*alike, other, (bound(5), recorded(5))).upper == 4
    first = (bound(3), msgspec.structs.replace(recorded(3), portions=2))
    assert stretched(first, (bound(4), recorded(4))).upper == 4, "what was made in portions is taken by itself"


def test_a_stretch_must_come_to_the_sum_of_what_is_recorded() -> None:
    """The digests tell, and not the numbers of rows: what one brought, another may have taken back."""
    stretch = stretched(*((bound(time), recorded(time)) for time in (2, 3)))
    told = stretch.recorded
    assert told.shards == {"orders": Content(2, "0" * 31 + "2"), "revenue": Content(2, "0" * 31 + "4")}
    assert stretched((bound(2), recorded(2))).recorded == recorded(2)
    machine = replay()
    fewer = {name: Content(0, content.digest) for name, content in told.shards.items()}
    assert machine.replayed(Found(2, told.sources, fewer, 2), told) is State.COMPLETE
    with pytest.raises(Diverged, match="revenue"):
        replay().replayed(Found(2, told.sources, told.shards | {"revenue": OTHER}, 2), told)
