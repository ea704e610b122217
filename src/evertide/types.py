"""The integers that must not be confused with each other, as distinct types for mypy.

1. A function that returns one of these, and a record that stores one, uses the type.
2. A parameter uses the type where another of these could be passed by mistake; elsewhere it takes an `int`.
3. `time + 1` is an `int`: wrap it where a `Time` is needed.
"""

from __future__ import annotations

from typing import NewType

Time = NewType("Time", int)
"""The number of a transaction. An upper is the first time that is not complete."""

SequenceNumber = NewType("SequenceNumber", int)
"""The number of a record in the Meta log of one key: 1 for the first, 0 where a key has no record."""

Generation = NewType("Generation", int)
"""The number of a list of member shards (`evertide.store.writers`)."""
