"""What the journal stores of a topic: positions and fragments, in their stored form."""

from __future__ import annotations

import msgspec
import pytest

from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.sources.kafka.positions import (
    START,
    OffsetRange,
    PartitionRecords,
    TopicFragment,
    decode_position,
    encode_position,
)

POSITION = '{"version":1,"topic_id":"RQeEICEMTyqZi5uOKQGrIw","next":{"0":17,"1":4,"10":0}}'
FRAGMENT = '{"topic_id":"id","ranges":[[0,5,17,3,"abc"]],"lost":[[1,2,4]]}'


def test_stored_positions_can_be_read() -> None:
    """From existing storages: a change of these texts needs a new version."""
    assert encode_position("RQeEICEMTyqZi5uOKQGrIw", {1: 4, 10: 0, 0: 17}) == POSITION
    assert decode_position(POSITION) == ("RQeEICEMTyqZi5uOKQGrIw", {0: 17, 1: 4, 10: 0})
    assert START == '{"version":1,"topic_id":"","next":{}}'


def test_stored_fragments_can_be_read() -> None:
    fragment = TopicFragment("id", (OffsetRange(0, 5, 17, 3, "abc"),), ((1, 2, 4),))
    assert msgspec.json.encode(fragment).decode() == FRAGMENT
    assert msgspec.json.decode(FRAGMENT, type=TopicFragment) == fragment


def test_a_position_that_is_damaged_or_of_another_version_is_never_guessed() -> None:
    with pytest.raises(RecordDamaged):
        decode_position('{"version":1,"next":')
    with pytest.raises(UnsupportedFormat):
        decode_position(POSITION.replace('"version":1', '"version":2'))


def test_a_checksum_depends_on_offsets_keys_and_values() -> None:
    base: tuple[list[int], list[bytes | None], list[bytes | None]] = ([1, 2], [b"a", None], [b"b", b"c"])
    others = [
        ([1, 3], [b"a", None], [b"b", b"c"]),
        ([1, 2], [b"a", b""], [b"b", b"c"]),
        ([1, 2], [b"", b"a"], [b"b", b"c"]),
        ([1, 2], [b"a", None], [b"bc", b""]),
        ([1, 2], [b"a", None], [b"b", None]),
        ([1, 2], [b"ab", None], [b"", b"c"]),
    ]
    sums = {PartitionRecords(0, (), *columns).checksum() for columns in (base, *others)}  # type: ignore[arg-type]
    assert len(sums) == 1 + len(others)
    assert PartitionRecords(0, (), *base).checksum() == "18a850e2d1c02e155b4a949ff4947b61"
