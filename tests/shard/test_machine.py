"""Runs of the state machine (`tests.shard.machine`): random steps, and actions crossed by those of another actor."""

from __future__ import annotations

import os

import pytest

from tests.kit.runtime import RandomStream
from tests.shard.machine import ShardMachine, cross_everywhere, run_machine
from tests.shard.machine_actors import ACTORS, Cross, Step


def test_shards_agree_with_the_model(caplog: pytest.LogCaptureFixture) -> None:
    """The same runs each time, so that a failure is reproducible. `EVERTIDE_MACHINE_EXAMPLES` makes it longer.

    `make soak` runs with other seeds.
    """
    caplog.set_level("CRITICAL", "evertide")  # a storage that fails all the time logs a lot
    run_machine(int(os.environ.get("EVERTIDE_MACHINE_EXAMPLES", "40")), 40, seed=0)


def test_a_seed_decides_the_steps_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of `make soak` gets nothing but its seed. Fails if Hypothesis chooses a seed of its own."""
    steps: list[Step] = []
    monkeypatch.setattr(ShardMachine, "_perform", lambda _machine, step: steps.append(step))
    found = []
    for seed in (7, 7, 8):
        run_machine(3, 10, seed=seed)
        found.append([*steps])
        del steps[:]
    assert len(found[0]) >= 10
    assert found[0] == found[1] != found[2]


NARROW: dict[str, list[tuple[str, ...]]] = {
    "append": [("collect",), ("append", "take_over")],
    "append_together": [("append",)],
    "link": [("collect",), ("take_over",)],
    "compact": [("collect",), ("compact", "collect")],
    "roll_up": [("append", "roll_up", "collect")],
    "advance_since": [("hold",), ("advance_since",)],
    "hold": [("advance_since",), ("hold",), ("release",)],
    "release": [("hold",), ("advance_since",), ("release",)],
    "collect": [("open_snapshot", "compact"), ("link", "beat"), ("newcomer", "append")],
    "take_over": [("beat",)],
    "open_snapshot": [("compact", "collect"), ("advance_since", "compact", "collect")],
}


@pytest.mark.parametrize("action", NARROW)
def test_actions_crossed_by_another_actor(action: str) -> None:
    """An action, and right before each of its storage calls, one after the other, actions likely to disturb it.

    Random runs seldom hit the short moments in which the order of two reads decides. `make soak` tries all pairs.
    """
    for actions in NARROW[action]:
        cross_everywhere(action, actions)


def test_holds_change_as_reported_while_storage_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Random steps that change since and holds only: few steps of the other runs do, and few calls of each can fail."""
    caplog.set_level("CRITICAL", "evertide")
    chance = RandomStream(0)
    actions = ("hold", "release", "advance_since")
    for _ in range(60):
        machine = ShardMachine()
        machine.begin(appends=8)
        for _ in range(40):
            crossing = (*actions, "die")[chance.below(4)]
            cross = Cross(1 + chance.below(4), chance.below(ACTORS), (crossing,), y=chance.below(4))
            rate, seed = (0.0, 0.5, 0.8)[chance.below(3)], chance.below(10_000)
            machine.act(Step(chance.below(ACTORS), actions[chance.below(3)], 2, chance.below(4), rate, seed, cross))
        machine.shards_agree_with_the_model()
        machine.teardown()
