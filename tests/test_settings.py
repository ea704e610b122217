"""Settings: plain values, checked when constructed."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from evertide.errors import InvalidInput
from evertide.settings import Settings

NAMES = [field.name for field in fields(Settings)]


def test_the_defaults_are_valid_and_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Settings())) == Settings()


def test_settings_are_frozen_and_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().fetchers = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings(1024)  # type: ignore[call-arg]
    assert replace(Settings(), fetchers=8).fetchers == 8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, -0.5, "10", None, float("-inf")])
def test_a_value_that_is_not_a_positive_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        Settings(**{name: value})  # type: ignore[arg-type]
    assert caught.value.where == f"settings.{name}"
    assert repr(value) in caught.value.why


def test_a_fan_in_of_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="compaction_fan_in"):
        Settings(compaction_fan_in=1)


@pytest.mark.parametrize("name", ["lease_ttl_s", "writer_ttl_s"])
def test_a_time_to_live_must_allow_a_late_heartbeat(name: str) -> None:
    Settings(**{name: 10.0})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="heartbeat_interval_s"):
        Settings(**{name: 9.9})  # type: ignore[arg-type]
