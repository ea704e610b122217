"""A map over many rows that sends only the columns it reads to the executors, and collects only those it computes.

Rows are matched by position: a Project over a leaf outputs one row per input row, in the order of the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.plan.catalyst.scala import read_list
from evertide.plan.catalyst.walk import get_kind

__all__ = ["NarrowMap", "make_narrow_map"]


@dataclass(frozen=True, slots=True)
class NarrowMap:
    computed: tuple[Any, ...]
    """Catalyst expressions."""
    reads: tuple[int, ...]
    """Positions of the leaf's columns that they read."""
    places: tuple[tuple[bool, int], ...]
    """Per output column: whether it is computed, and its position among the computed columns or in the leaf."""

    def assemble(self, leaf: pa.Table, found: pa.Table) -> list[Any]:
        """Combine columns of the leaf and computed columns to the output."""
        return [(found if is_computed else leaf).column(at) for is_computed, at in self.places]


def make_narrow_map(project: Any, attributes: Sequence[Any]) -> NarrowMap | None:
    """Split a Project over a leaf; None if all its columns are computed, or none is."""
    positions = {attribute.exprId().id(): at for at, attribute in enumerate(attributes)}
    computed: list[Any] = []
    places: list[tuple[bool, int]] = []
    for expression in read_list(project.projectList()):
        source = expression.child() if get_kind(expression) == "Alias" else expression
        if get_kind(source) == "AttributeReference":
            places.append((False, positions[source.exprId().id()]))
        else:
            places.append((True, len(computed)))
            computed.append(expression)
    if len(computed) in (0, len(places)):
        return None
    reads = {positions[read.exprId().id()] for each in computed for read in read_list(each.references().toSeq())}
    return NarrowMap(tuple(computed), tuple(sorted(reads)) or (0,), tuple(places))
