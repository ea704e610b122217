"""U1: an append drops changes below an upper that another writer advanced, and does not wait because of them."""

from __future__ import annotations

from collections import Counter

import pytest

from evertide.settings import Settings
from evertide.shard.append import Outcome
from tests.shard.kit import BLOBS, INLINE, SCHEMA, changes, concat_changes, make_writer, updates_of
from tests.shard.test_trimmed_batches import fleet


@pytest.mark.parametrize("settings", [INLINE, BLOBS], ids=["inline", "blobs"])
def test_u1_changes_below_an_upper_that_another_writer_advanced_are_dropped(settings: Settings) -> None:
    """The upper is 10, changes at 5 and 7 arrive, the input frontier is 11: nothing is written, and the upper becomes
    11.

    Fails if only the changes at the upper itself are dropped.
    """
    other, ours = fleet(2, settings=settings)
    shard = other.create("t", SCHEMA, make_writer(other))
    shard.append(concat_changes(), 0, 10, make_writer(other))
    late = concat_changes(changes([(5, "late")], 5), changes([(7, "late")], 7))
    assert ours.open("t").append(late, 0, 11, make_writer(ours)) == Outcome(10, 11)
    assert shard.upper == 11
    assert updates_of(shard) == Counter()
    assert list(ours.blob.list("parts/t")) == []
