"""How often a process that serves looks for garbage in cycles.

Python looks through all young objects every 700 allocations, and through all old ones when a quarter was added. With
ten thousand clients that begin it spent a third of its time on that. What is there when a server starts stays until it
ends, so it is never looked at again; and the rest seldom: nothing here makes cycles faster than memory grows.
"""

from __future__ import annotations

import atexit
import gc

__all__ = ["collect_seldom"]

_THRESHOLDS = (50_000, 20, 20)


def collect_seldom() -> None:
    """For the whole process: so only its own command calls it, never the library."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    atexit.register(gc.unfreeze)  # in the end all is looked at, or libraries complain that they leak
