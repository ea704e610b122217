"""Merges all runs of an arrangement, whatever its settings are, so that a test knows where the rows are."""

from __future__ import annotations

from evertide.flow.circuit import Circuit
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.runs import Run


def compact(arrangement: Arrangement) -> None:
    """Merge all runs into one."""
    spine = arrangement._spine
    with spine._hold_memory() as memory, spine._merging:
        runs: list[Run] = [*spine.runs.parts, *memory]
        if memory or len(runs) > 1:
            spine._replace(runs)


def compact_circuit(circuit: Circuit) -> None:
    for arrangement in circuit.arrangements.values():
        compact(arrangement)
