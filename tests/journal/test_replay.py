"""The times of a restart, and the comparison of a replay with the records (J4, J11)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from evertide.errors import Damaged, Diverged, Unexpected
from evertide.journal.records import Bound, Committed, Content, Input
from evertide.journal.replay import ReplayResult, ReplayStretch, check_replay, check_times
from evertide.types import Generation, Time

ONE, OTHER = Content(1, "0" * 31 + "1"), Content(1, "0" * 31 + "2")


def recorded_result(time: int = 0) -> Committed:
    return Committed(Time(time), {"files": ONE, "push": ONE}, {"orders": ONE, "revenue": OTHER}, "w")


def replayed_result(time: int = 0, **changed: Content | None) -> ReplayResult:
    """The recorded result, except for the given values."""
    record = recorded_result(time)
    return ReplayResult(
        time,
        {name: changed.get(name, content) for name, content in record.sources.items()},
        {name: changed.get(name, content) for name, content in record.shards.items()},
    )


# The times of a restart


@pytest.mark.parametrize(("restored", "committed", "bound"), list(itertools.product(range(4), repeat=3)))
def test_impossible_times_are_damage(restored: int, committed: int, bound: int) -> None:
    """Every combination. Fails without either check."""
    if restored <= committed <= bound:
        check_times(restored, committed, bound, "there")
        return
    with pytest.raises(Damaged) as error:
        check_times(restored, committed, bound, "there")
    assert error.value.path == "there"
    if restored > committed:
        assert f"transactions {committed} to {restored - 1}, which no shard has" in error.value.why
    else:
        assert f"transactions {bound} to {committed - 1} are committed, but no record binds them" in error.value.why


# The comparison


def test_an_equal_replay_passes() -> None:
    check_replay(replayed_result(7), recorded_result(7))
    check_replay(replayed_result(7, files=None, revenue=None), recorded_result(7))


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

    Fails if only the counts are compared, and if only the digests are.
    """
    expected = {**recorded_result().sources, **recorded_result().shards}[name]
    with pytest.raises(Diverged) as error:
        check_replay(replayed_result(5, **{name: said}), recorded_result(5))
    assert (error.value.where, error.value.time) == (where, 5)
    assert error.value.expected == f"{expected.rows} rows, digest {expected.digest}"
    assert error.value.found == f"{said.rows} rows, digest {said.digest}"


def test_j4_the_source_of_a_kept_table_is_not_compared() -> None:
    """Its source is not read, as the shard has the rows; its name must still be in the result."""
    check_replay(replayed_result(5, files=None), recorded_result(5))
    with pytest.raises(Unexpected, match="files"):
        check_replay(ReplayResult(5, {"push": ONE}, recorded_result().shards), recorded_result(5))


@pytest.mark.parametrize("kind", ["source", "shard"])
def test_j4_a_name_in_one_and_not_in_the_other_has_an_error_of_its_own(kind: str) -> None:
    """Fails if only the names that both have are compared."""
    record = recorded_result(5)
    names = record.sources if kind == "source" else record.shards
    for given in ({**names, "new": ONE}, dict(list(names.items())[1:])):
        sources, shards = (given, record.shards) if kind == "source" else (record.sources, given)
        with pytest.raises(Unexpected) as error:
            check_replay(ReplayResult(5, sources, shards), record)
        expected = f"transaction 5 has the {kind}s {sorted(names)}, but the replay computed {sorted(given)}"
        assert error.value.why == expected


def test_the_wrong_record_is_refused() -> None:
    with pytest.raises(Unexpected, match=r"transaction 4.*record of transaction 5"):
        check_replay(replayed_result(4), recorded_result(5))


# Groups


def bound(time: int, generation: int = 3, sources: str = "push") -> Bound:
    return Bound(
        Time(time), Generation(generation), dict.fromkeys(sources.split(), Input("a", "b")), "w", f"t{time}", 0.0
    )


def group(*transactions: tuple[Bound, Committed], rows_max: int = 100) -> ReplayStretch:
    return ReplayStretch.take(transactions, rows_max)


def test_a_group_has_transactions_that_are_alike() -> None:
    alike = [(bound(time), recorded_result(time)) for time in range(4)]
    assert (group(*alike).time, group(*alike).upper) == (0, 4)
    assert group(*alike, rows_max=3).upper == 2, "each transaction has two rows"
    assert group(*alike, rows_max=0).upper == 1, "a group has at least one transaction"
    in_portions = msgspec.structs.replace(recorded_result(4), portions=2)
    others = [
        (bound(4, generation=4), recorded_result(4)),
        (bound(4, sources="push files"), recorded_result(4)),
        (bound(4), Committed(Time(4), {"push": ONE}, {"orders": ONE}, "w")),
        (bound(4), in_portions),
    ]
    for other in others:
        assert group(*alike, other, (bound(5), recorded_result(5))).upper == 4
    first = (bound(3), msgspec.structs.replace(recorded_result(3), portions=2))
    assert group(first, (bound(4), recorded_result(4))).upper == 4, "a transaction of portions is a group of its own"


def test_a_group_must_equal_the_sum_of_its_records() -> None:
    """The digests decide, not the row counts: changes of different transactions may cancel out."""
    summed = group(*((bound(time), recorded_result(time)) for time in (2, 3))).recorded
    assert summed.shards == {"orders": Content(2, "0" * 31 + "2"), "revenue": Content(2, "0" * 31 + "4")}
    assert group((bound(2), recorded_result(2))).recorded == recorded_result(2)
    fewer = {name: Content(0, content.digest) for name, content in summed.shards.items()}
    check_replay(ReplayResult(2, summed.sources, fewer, 2), summed)
    with pytest.raises(Diverged, match="revenue"):
        check_replay(ReplayResult(2, summed.sources, {**fewer, "revenue": ONE}, 2), summed)
