"""Settings: values only, checked when made."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from evertide.errors import InvalidInput
from evertide.settings import Settings

NAMES = [field.name for field in fields(Settings)]


def test_the_defaults_are_valid_and_travel() -> None:
    assert pickle.loads(pickle.dumps(Settings())) == Settings()


def test_they_are_frozen_and_named() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().fetchers = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings(1024)  # type: ignore[call-arg]
    assert replace(Settings(), fetchers=8).fetchers == 8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, -0.5, "10", None, float("-inf")])
def test_what_is_not_a_positive_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        Settings(**{name: value})  # type: ignore[arg-type]
    assert caught.value.where == f"settings.{name}"
    assert repr(value) in caught.value.why


def test_merging_one_batch_is_no_merging() -> None:
    with pytest.raises(InvalidInput, match="compaction_fan_in"):
        Settings(compaction_fan_in=1)


@pytest.mark.parametrize("name", ["lease_ttl_s", "writer_ttl_s"])
def test_one_late_beat_must_not_end_a_lease(name: str) -> None:
    Settings(**{name: 10.0})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="beat_interval_s"):
        Settings(**{name: 9.9})  # type: ignore[arg-type]
