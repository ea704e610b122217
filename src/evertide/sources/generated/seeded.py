"""Numbers that look random and follow from a seed: the same on every machine, in every version (splitmix64).

`Chance` is a stream of them; `hashed` gives each of many numbers its own 64 random bits, so that the row with a number
can be made without those before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Chance", "Longs", "Words", "hashed"]

Words: TypeAlias = npt.NDArray[np.uint64]
Longs: TypeAlias = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15


@dataclass(slots=True)
class Chance:
    """A stream of numbers that follows from its seed (splitmix64: small, and the same on every Python)."""

    state: int

    def bits(self) -> int:
        """64 of them. The function is one to one, so the stream repeats only after 2^64 numbers."""
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

    def fork(self, stream: int) -> Chance:
        """Another stream that follows from this one's seed and a number."""
        return Chance(Chance(self.state ^ Chance(stream & _MASK).bits()).bits())


def hashed(numbers: Longs | Words, seed: int) -> Words:
    """splitmix64, as `Chance` has it, for many at once."""
    words = numbers.view(np.uint64) * np.uint64(_GOLDEN)
    words += np.uint64(seed)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58_476D_1CE4_E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D0_49BB_1331_11EB)
    words ^= words >> np.uint64(31)
    return words
