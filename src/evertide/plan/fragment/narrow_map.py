"""A map over many rows, of which only the columns that it computes from go to the executors, and only those that it
computes come back; the others never leave the driver.

Rows are told by their place: a Project over a leaf gives one row per row, in the order of the leaf's partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.plan.catalyst.scala import sequence
from evertide.plan.catalyst.walk import kind

__all__ = ["NarrowMap", "narrow_map"]


@dataclass(frozen=True, slots=True)
class NarrowMap:
    computed: tuple[Any, ...]
    """Catalyst's expressions."""
    reads: tuple[int, ...]
    """Columns of the leaf that they read, by position."""
    places: tuple[tuple[bool, int], ...]
    """Per column of the output: whether it is computed, and its position among those, or in the leaf."""

    def assemble(self, leaf: pa.Table, found: pa.Table) -> list[Any]:
        """The columns of the output, of the rows of the leaf and what was computed of each."""
        return [(found if is_computed else leaf).column(at) for is_computed, at in self.places]


def narrow_map(project: Any, attributes: Sequence[Any]) -> NarrowMap | None:
    """Of a Project over a leaf with these attributes; None if it moves no column, or computes none."""
    positions = {attribute.exprId().id(): at for at, attribute in enumerate(attributes)}
    computed: list[Any] = []
    places: list[tuple[bool, int]] = []
    for expression in sequence(project.projectList()):
        source = expression.child() if kind(expression) == "Alias" else expression
        if kind(source) == "AttributeReference":
            places.append((False, positions[source.exprId().id()]))
        else:
            places.append((True, len(computed)))
            computed.append(expression)
    if len(computed) in (0, len(places)):
        return None
    reads = {positions[read.exprId().id()] for each in computed for read in sequence(each.references().toSeq())}
    return NarrowMap(tuple(computed), tuple(sorted(reads)) or (0,), tuple(places))
