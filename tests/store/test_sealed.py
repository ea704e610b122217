"""Sealed values: a value is read back exactly as it was written, and no other bytes are taken for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.store.meta import seal, unseal


class Thing(msgspec.Struct, frozen=True):
    name: str
    numbers: tuple[int, ...]
    inner: dict[str, bytes]


class Other(msgspec.Struct, frozen=True):
    flag: bool


THING = Thing("x", (1, -2, 2**63 - 1), {"k": b"\0\xff"})

things = st.builds(
    Thing,
    st.text(),
    st.lists(st.integers(-(2**63), 2**64 - 1)).map(tuple),
    st.dictionaries(st.text(max_size=3), st.binary()),
)


@given(things)
def test_a_sealed_value_is_unsealed(thing: Thing) -> None:
    assert unseal(seal(thing), Thing, "there") == thing


def test_layout() -> None:
    """Byte 0 is the version, 1 to 8 the checksum, then MessagePack, as `docs/storage-format.md` defines."""
    body = msgspec.msgpack.encode(THING)
    assert seal(THING) == b"\x01" + xxhash.xxh64_intdigest(body).to_bytes(8, "little") + body
    assert seal(THING, version=7)[0] == 7


def test_every_flipped_bit_is_noticed() -> None:
    """Fails without the comparison of checksums."""
    good = seal(THING)
    for at in range(len(good) * 8):
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(UnsupportedFormat if at < 8 else RecordDamaged, match="there"):
            unseal(bytes(bad), Thing, "there")


def test_every_truncation_is_noticed() -> None:
    good = seal(THING)
    for length in range(len(good)):
        with pytest.raises(RecordDamaged, match="there"):
            unseal(good[:length], Thing, "there")
    with pytest.raises(RecordDamaged):
        unseal(good + b"\0", Thing, "there")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_by_number_before_anything_is_read(version: int) -> None:
    """Even if all other bytes are garbage: a newer format may look like anything. Fails if the checks are swapped."""
    with pytest.raises(UnsupportedFormat) as refused:
        unseal(bytes([version]) + b"whatever a newer version may write", Thing, "there")
    assert (refused.value.path, refused.value.found, refused.value.supported) == ("there", version, 1)


@pytest.mark.parametrize(
    "other", [Other(flag=True), [1, 2], "text", None, {"name": 5, "numbers": [], "inner": {}}], ids=repr
)
def test_a_value_of_another_kind_is_damage(other: Any) -> None:
    with pytest.raises(RecordDamaged, match="not a Thing"):
        unseal(seal(other), Thing, "there")


def test_the_same_value_gives_the_same_bytes() -> None:
    assert seal(THING) == seal(Thing("x", (1, -2, 2**63 - 1), {"k": b"\0\xff"}))


RACE = """
import sys, threading
import msgspec
from evertide.store.meta import seal, unseal
sys.setswitchinterval(1e-6)
for number in range(150):
    inner = msgspec.defstruct(f"Inner{number}", [("a", int), ("b", dict[str, tuple[int, ...]])], frozen=True)
    kind = msgspec.defstruct(f"Outer{number}", [(f"f{at}", dict[str, inner]) for at in range(20)], frozen=True)
    data = seal(kind(**{f"f{at}": {"x": inner(1, {"y": (1, 2)})} for at in range(20)}))
    gate = threading.Barrier(4)
    def decode():
        gate.wait()
        unseal(data, kind, "here")
    several = [threading.Thread(target=decode) for _ in range(4)]
    for one in several: one.start()
    for one in several: one.join()
"""


def test_threads_may_read_the_first_record_of_a_kind_together() -> None:
    """In a process of its own, as it ends in a segmentation fault if two threads create the decoder."""
    assert subprocess.run([sys.executable, "-c", RACE], check=False).returncode == 0
