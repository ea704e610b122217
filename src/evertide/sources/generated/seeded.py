"""Pseudo-random numbers that a seed determines: the same on every machine and in every version (splitmix64).

`RandomStream` is a stream of numbers. `hash_numbers` gives each of many numbers its own 64 random bits, so that a row
can be generated from its number alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evertide.rows.columns import Longs, Words

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15


@dataclass(slots=True)
class RandomStream:
    """A stream of pseudo-random numbers (splitmix64: small, and the same in every version of Python)."""

    state: int

    def bits(self) -> int:
        """64 random bits. The mixing function is bijective, so the stream repeats only after 2^64 numbers."""
        self.state = (self.state + _GOLDEN) & _MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, limit: int) -> int:
        """In [0, limit)."""
        return self.bits() % limit

    def random(self) -> float:
        """In [0, 1)."""
        return (self.bits() >> 11) / (1 << 53)

    def fork(self, stream: int) -> RandomStream:
        """Another stream, determined by this one's state and a number."""
        return RandomStream(RandomStream(self.state ^ RandomStream(stream & _MASK).bits()).bits())


def hash_numbers(numbers: Longs | Words, seed: int) -> Words:
    """splitmix64, as in `RandomStream`, of many numbers at once."""
    words = numbers.view(np.uint64) * np.uint64(_GOLDEN)
    words += np.uint64(seed)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58_476D_1CE4_E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D0_49BB_1331_11EB)
    words ^= words >> np.uint64(31)
    return words
