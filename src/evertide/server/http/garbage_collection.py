"""Make Python's cyclic garbage collection rarer in a process that serves.

By default, Python scans all young objects every 700 allocations, and all old ones when they have grown by a quarter.
While ten thousand clients connected, that took a third of the time. The objects of a started server live until its end,
so they are excluded from scans; other scans are rare, because the server creates few cycles.
"""

from __future__ import annotations

import atexit
import gc

__all__ = ["tune_garbage_collection"]

_THRESHOLDS = (50_000, 20, 20)


def tune_garbage_collection() -> None:
    """Applies to the whole process, so only commands call it, never the library."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    atexit.register(gc.unfreeze)  # so that native libraries can run their finalizers
