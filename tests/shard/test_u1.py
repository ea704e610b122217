"""U1: changes that lie below the upper of the output, which another writer moved, are dropped and hold nothing back."""

from __future__ import annotations

from collections import Counter

import pytest

from evertide.settings import Settings
from evertide.shard.append import Outcome
from tests.shard.kit import BLOBS, INLINE, SCHEMA, changes, joined, make_writer, updates_of
from tests.shard.test_u7 import fleet


@pytest.mark.parametrize("settings", [INLINE, BLOBS], ids=["inline", "blobs"])
def test_u1_changes_below_an_upper_that_another_writer_moved(settings: Settings) -> None:
    """The upper is 10, changes at 5 and 7 come, the input frontier is 11: nothing is written, and the upper is 11.

    Seen to fail with only the changes at the upper itself dropped.
    """
    other, ours = fleet(2, settings=settings)
    shard = other.create("t", SCHEMA, make_writer(other))
    shard.append(joined(), 0, 10, make_writer(other))
    late = joined(changes([(5, "late")], 5), changes([(7, "late")], 7))
    assert ours.open("t").append(late, 0, 11, make_writer(ours)) == Outcome(10, 11)
    assert shard.upper == 11
    assert updates_of(shard) == Counter()
    assert list(ours.blob.list("parts/t")) == []
