"""T1-T4: how far all consumers durably are, whatever happens to their signals."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput
from evertide.progress.flush import FlushTracker, Position

FRAGMENTS = 5


def test_t1_a_flush_before_the_end_of_a_transaction_does_not_hold_it_back() -> None:
    """Its data is in the first fragment only, and flushed before the end comes: it never writes again. A tracker that
    waits for a report of the transaction's own end would wait for ever."""
    found = FlushTracker()
    found.register("first", -1)
    found.register("second", -1)
    for fragment in range(1, 47_522, 9_000):
        if fragment == 1:
            found.delivered("first", (0, fragment))
        found.delivered("second", (0, fragment))
        found.reports("first", (0, 1))
        assert found.position == -1
    found.ends(0)
    assert found.position == -1
    found.reports("second", (0, 47_521))  # more than it was given: no exact match is asked for
    assert found.position == 0


@pytest.mark.parametrize("flushed_after", range(1, FRAGMENTS + 1))
def test_t2_a_flush_between_two_fragments_covers_what_came_before_it_only(flushed_after: int) -> None:
    found = FlushTracker()
    found.register("a", -1)
    for fragment in range(1, FRAGMENTS + 1):
        found.delivered("a", (3, fragment))
        if fragment == flushed_after:
            found.reports("a", (3, fragment))
    found.ends(3)
    assert found.position == (3 if flushed_after == FRAGMENTS else 2)
    found.reports("a", (3, FRAGMENTS))
    assert found.position == 3


def test_t2_nothing_for_anybody_in_the_last_fragment() -> None:
    found = FlushTracker()
    found.register("a", -1)
    found.delivered("a", (0, 1))
    found.reports("a", (0, 1))
    found.ends(0)
    assert found.position == 0


def test_t2_one_is_added_one_is_removed_and_one_crashes_in_the_middle() -> None:
    """What was owed to one that is gone is owed to nobody; what one that crashed durably has is read again."""
    found = FlushTracker()
    for name in ("stays", "leaves", "crashes"):
        found.register(name, -1)
        found.delivered(name, (0, 1))
    found.register("comes", -1)
    found.delivered("comes", (0, 2))
    found.reports("stays", (0, 1))
    found.reports("comes", (0, 2))
    found.ends(0)
    assert found.position == -1
    found.remove("leaves")
    found.reports("leaves", (0, 1))  # too late: not heard, and no error
    assert found.position == -1
    found.remove("crashes")
    found.register("crashes", -1)
    found.delivered("crashes", (0, 1))
    assert found.position == -1
    found.reports("crashes", 0)
    assert found.position == 0


def test_t3_all_orders_of_early_late_repeated_and_lost_signals() -> None:
    """Three flushes, of which each signal may come at any place among the deliveries, twice or not at all. Without the
    order of positions a signal of an early flush would vouch for a later fragment."""
    steps: list[tuple[str, Position]] = [("given", (0, 1)), ("given", (0, 2)), ("given", (1, 1))]
    signals: list[tuple[str, Position]] = [("said", (0, 1)), ("said", (0, 2)), ("said", (0, 1))]
    for order in permutations([*steps, *signals]):
        if [each for each in order if each[0] == "given"] != steps:
            continue
        found = FlushTracker()
        found.register("a", -1)
        said: set[Position] = set()
        given_: set[Position] = set()
        for kind, position in order:
            if kind == "given":
                found.delivered("a", position)
                given_.add(position)
            else:
                found.reports("a", position)
                said.add(position)
            covered = max(said, default=(-1, 0))
            assert found.position <= min([each[0] - 1 for each in given_ if each > covered], default=found.ended)
        found.ends(0)
        found.ends(1)
        assert found.position == 0
        found.reports("a", (1, 1))
        assert found.position == 1


@dataclass
class Model:
    """What is really durable, per consumer: the truth that signals tell of, or fail to."""

    given: dict[str, list[Position]] = field(default_factory=lambda: {name: [] for name in "abc"})
    flushed: dict[str, int] = field(default_factory=lambda: dict.fromkeys("abc", 0))

    def durable(self, ended: int) -> int:
        left = [
            given[self.flushed[name]][0] - 1 for name, given in self.given.items() if self.flushed[name] < len(given)
        ]
        return min([ended, *left])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_t3_never_ahead_of_what_is_durable_and_right_in_the_end(data: st.DataObject) -> None:
    """Signals wait in a bag, from which they come in any order, twice, or never. In the end the truth is read again."""
    found, model = FlushTracker(), Model()
    for name in "abc":
        found.register(name, -1)
    bag: list[tuple[str, Position]] = []
    time = fragment = 0
    for _ in range(data.draw(st.integers(1, 40))):
        does = data.draw(st.sampled_from(["give", "flush", "signal", "repeat", "lose", "end"]))
        name = data.draw(st.sampled_from("abc"))
        if does == "give":
            fragment += 1
            model.given[name].append((time, fragment))
            found.delivered(name, (time, fragment))
        elif does == "flush" and model.given[name]:
            model.flushed[name] = len(model.given[name])
            bag.append((name, model.given[name][-1]))
        elif does in ("signal", "repeat", "lose") and bag:
            at = data.draw(st.integers(0, len(bag) - 1))
            signal = bag[at] if does == "repeat" else bag.pop(at)
            if does != "lose":
                found.reports(*signal)
        elif does == "end":
            found.ends(time)
            time, fragment = time + 1, 0
        assert found.position <= model.durable(found.ended)
    for name, given_ in model.given.items():
        if model.flushed[name]:
            found.reports(name, given_[model.flushed[name] - 1])
    assert found.position == model.durable(found.ended)


def test_t4_ten_thousand_idle_ones_hold_nobody_back() -> None:
    """Nor do they cost: the position looks at those that are owed something."""
    found = FlushTracker()
    for number in range(10_000):
        found.register(f"idle-{number}", -1)
    found.register("busy", -1)
    for time in range(1_000):
        found.delivered("busy", (time, 1))
        found.ends(time)
        assert found.position == time - 1
        found.reports("busy", (time, 1))
        assert found.position == time


def test_a_reader_is_owed_whatever_ended() -> None:
    found = FlushTracker()
    found.ends(9)
    found.register("sink", 4, is_reader=True)
    assert found.position == 4
    found.reports("sink", (6, 2))  # some of transaction 6
    assert found.position == 5
    found.reports("sink", 12)
    assert found.position == 9
    found.ends(12)
    assert found.position == 12
    found.ends(13)
    assert found.position == 12


def test_delivery_needs_registration_and_a_name_is_taken_once() -> None:
    found = FlushTracker()
    with pytest.raises(InvalidInput, match="not registered before delivery"):
        found.delivered("a", (0, 1))
    found.register("a", -1)
    with pytest.raises(InvalidInput, match="registered already"):
        found.register("a", -1)
