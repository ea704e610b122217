"""How far a reader is: completion counted per time, in whatever order the parts arrive (I5).

Pure: no threads, no storage. Numbered steps of the rule:

1. Listing a window makes each of its parts outstanding at the first time that it can have changes for.
2. Delivering a part takes it out. A part that failed was not delivered, so it stays, for ever if need be.
3. The frontier is the smallest time with an outstanding part; with none, the upper of what was listed.
4. The lease may move to the smallest diff whose listing has an outstanding part; with none, to the last listing's.
5. After `stop` nothing moves the frontier any more: a reader that leaves has not delivered what it did not deliver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evertide.types import SequenceNumber, Time

__all__ = ["Frontier"]


class Frontier:
    def __init__(self, start: Time) -> None:
        self.value = start
        """The first time that is not complete."""
        self.seqno = SequenceNumber(0)
        """The diff from which on the lease is still needed."""
        self._times: Counter[Time] = Counter()
        self._seqnos: Counter[SequenceNumber] = Counter()
        self.listed_upper = start
        """The upper of what was listed: the frontier once all of it is delivered."""
        self._listed_seqno = SequenceNumber(0)
        self._stopped = False

    @property
    def outstanding(self) -> int:
        return self._times.total()

    def listed(self, times: Sequence[Time], upper: Time, seqno: SequenceNumber) -> bool:
        """A window up to `upper`, with parts at these times, was listed at diff `seqno`. True if the frontier moved."""
        self._times.update(times)
        self._seqnos[seqno] += len(times)
        self.listed_upper = max(self.listed_upper, upper)
        self._listed_seqno = max(self._listed_seqno, seqno)
        return self._move()

    def delivered(self, time: Time, seqno: SequenceNumber) -> bool:
        """One part that was listed at `time` and `seqno` has arrived. True if the frontier moved."""
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
