"""How far a reader has progressed: completion per time, in any order of the parts (I5).

Pure: no threads, no storage. The rules:

1. Listing a window makes each of its parts outstanding at the first time that it can have changes for.
2. Delivering a part removes it. A part whose fetch failed stays outstanding.
3. The frontier is the smallest time with an outstanding part; without any, the upper of the last listing.
4. The lease may move to the earliest listing that has an outstanding part (to the diff that it was made at); without
   any, to the last listing.
5. After `stop` the frontier does not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evertide.types import SequenceNumber, Time


class Frontier:
    def __init__(self, start: Time) -> None:
        self.value = start
        """The first time that is not complete."""
        self.seqno = SequenceNumber(0)
        """The diff that the lease must not pass."""
        self._times: Counter[Time] = Counter()
        self._seqnos: Counter[SequenceNumber] = Counter()
        self.listed_upper = start
        """The upper of the last listing: the frontier once all parts are delivered."""
        self._listed_seqno = SequenceNumber(0)
        self._stopped = False

    @property
    def outstanding(self) -> int:
        return self._times.total()

    def add_listing(self, times: Sequence[Time], upper: Time, seqno: SequenceNumber) -> bool:
        """Add the listing of a window at diff `seqno`, with parts at these times. Return whether the frontier moved."""
        self._times.update(times)
        self._seqnos[seqno] += len(times)
        self.listed_upper = max(self.listed_upper, upper)
        self._listed_seqno = max(self._listed_seqno, seqno)
        return self._move()

    def add_delivery(self, time: Time, seqno: SequenceNumber) -> bool:
        """Remove one part that was listed at `time` and `seqno`. Return whether the frontier moved."""
        if self._times[time] <= 0 or self._seqnos[seqno] <= 0:
            raise ValueError(f"a part at time {time} of listing {seqno} is delivered that was not outstanding")
        self._times[time] -= 1
        self._seqnos[seqno] -= 1
        return self._move()

    def stop(self) -> None:
        self._stopped = True

    def _move(self) -> bool:
        if self._stopped:
            return False
        before = self.value
        self._times += Counter()
        self._seqnos += Counter()
        self.value = max(before, min(self._times, default=self.listed_upper))
        self.seqno = min(self._seqnos, default=self._listed_seqno)
        return self.value > before
