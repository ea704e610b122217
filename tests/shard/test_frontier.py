"""F3 on the pure `Frontier`: every order in which parts of several listings can complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest

from evertide.shard.frontier import Frontier
from evertide.types import SequenceNumber, Time

Listing = tuple[Sequence[int], int, int]
"""Times of the parts, upper, diff."""

LISTINGS: dict[str, tuple[Listing, ...]] = {
    "one part per time": (((0, 1, 2), 3, 4),),
    "several parts of one time": (((0, 0, 1, 1, 1), 2, 2),),
    "gaps in time": (((2, 5), 9, 3), ((11,), 14, 7)),
    "an empty window in between": (((0, 1), 2, 2), ((), 5, 3), ((5, 6), 7, 5)),
    "nothing at all": (((), 4, 2), ((), 6, 9)),
    "a part that spans times": (((0, 0), 6, 2), ((6, 7), 8, 3)),
    "three windows, one part each": (((0,), 1, 2), ((1,), 2, 3), ((2,), 3, 4)),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_f3_every_order_of_listing_and_completion(name: str) -> None:
    """Guards I5 in `Frontier`: after each step the frontier is the smallest time with an outstanding part, else the
    upper of the last listing. The lease follows the smallest diff that is still needed, and moves at no other
    moment.

    Fails if the frontier is the largest delivered time + 1, if only the number of outstanding parts is counted, if the
    frontier moves to the listed upper at listing, and if the lease's diff moves to the last listing at once.
    """
    listings = LISTINGS[name]
    orders = 0
    for steps in interleavings(listings):
        check(listings, steps)
        orders += 1
    assert orders >= 1


def interleavings(listings: Sequence[Listing]) -> Iterator[list[tuple[int, int] | int]]:
    """A step that is a number lists that window; a pair (window, part) delivers. Windows are listed in order."""
    tasks = [(window, part) for window, listing in enumerate(listings) for part in range(len(listing[0]))]
    everything: list[tuple[int, int] | int] = [*range(len(listings)), *tasks]
    for steps in permutations(everything):
        listed = -1
        for step in steps:
            if isinstance(step, int):
                if step != listed + 1:
                    break
                listed = step
            elif step[0] > listed:
                break
        else:
            yield list(steps)


def check(listings: Sequence[Listing], steps: Sequence[tuple[int, int] | int]) -> None:
    frontier = Frontier(Time(0))
    outstanding: list[tuple[Time, SequenceNumber]] = []
    upper = seqno = 0
    for step in steps:
        before = (frontier.value, frontier.seqno)
        if isinstance(step, int):
            times, upper, seqno = listings[step]
            outstanding += [(Time(time), SequenceNumber(seqno)) for time in times]
            moved = frontier.add_listing([*map(Time, times)], Time(upper), SequenceNumber(seqno))
        else:
            part = (Time(listings[step[0]][0][step[1]]), SequenceNumber(listings[step[0]][2]))
            outstanding.remove(part)
            moved = frontier.add_delivery(*part)
        assert frontier.value == min((time for time, _ in outstanding), default=upper), steps
        assert frontier.seqno == min((diff for _, diff in outstanding), default=seqno), steps
        assert moved == (frontier.value > before[0]), steps
        assert frontier.outstanding == len(outstanding)
    assert frontier.value == listings[-1][1]
    assert frontier.seqno == listings[-1][2]


@pytest.mark.parametrize("lost", range(5))
def test_f1_a_part_that_never_arrives_holds_its_time(lost: int) -> None:
    """However many parts arrive after it, in any order, and however many windows are listed."""
    for order in permutations([part for part in range(5) if part != lost]):
        frontier = Frontier(Time(0))
        frontier.add_listing([Time(part) for part in range(5)], Time(5), SequenceNumber(2))
        for part in order:
            frontier.add_delivery(Time(part), SequenceNumber(2))
        assert (frontier.value, frontier.seqno) == (lost, 2)
        for later in range(5, 8):
            frontier.add_listing([Time(later)], Time(later + 1), SequenceNumber(later))
            frontier.add_delivery(Time(later), SequenceNumber(later))
            assert (frontier.value, frontier.seqno) == (lost, 2)


def test_f4_after_a_stop_nothing_moves() -> None:
    """Guards step 5. Without it the frontier moves to 3 with the last part, and to 9 with the next window."""
    frontier = Frontier(Time(0))
    frontier.add_listing([Time(0), Time(1), Time(2)], Time(3), SequenceNumber(2))
    assert frontier.add_delivery(Time(0), SequenceNumber(2))
    frontier.stop()
    assert not frontier.add_delivery(Time(1), SequenceNumber(2))
    assert not frontier.add_delivery(Time(2), SequenceNumber(2))
    assert not frontier.add_listing([], Time(9), SequenceNumber(5))
    assert (frontier.value, frontier.seqno) == (1, 2)


def test_the_frontier_starts_at_its_time_and_never_goes_back() -> None:
    frontier = Frontier(Time(7))
    assert not frontier.add_listing([], Time(7), SequenceNumber(1))
    assert frontier.value == 7
    assert frontier.add_listing([Time(8)], Time(9), SequenceNumber(2))
    assert frontier.value == 8


@pytest.mark.parametrize(("time", "seqno"), [(0, 2), (1, 3), (5, 2)])
def test_only_outstanding_parts_can_be_delivered(time: int, seqno: int) -> None:
    """A part counted twice would move the frontier past a missing one."""
    frontier = Frontier(Time(0))
    frontier.add_listing([Time(0), Time(1)], Time(2), SequenceNumber(2))
    frontier.add_delivery(Time(0), SequenceNumber(2))
    with pytest.raises(ValueError, match="not outstanding"):
        frontier.add_delivery(Time(time), SequenceNumber(seqno))
