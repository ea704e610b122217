"""The cone of a stage over leaves in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from evertide.flow.cone import Cone
from evertide.flow.trace import cut_plan
from evertide.plan.algebra.nodes import Attribute, Join, JoinType, Scan, Union
from evertide.rows.changes import DIFF_FIELD

PAIR = pa.struct([pa.field("f", pa.int32())])
OTHER_PAIR = pa.struct([pa.field("g", pa.int32(), nullable=False)])


@dataclass
class MemoryLeaf:
    delta: pa.Table
    keys: list[pa.Table] = field(default_factory=list)
    """Of each look-up."""

    def get_column(self, attribute: int) -> str:
        return "c"

    def lookup(self, columns: tuple[str, ...], keys: pa.Table) -> pa.Table:
        self.keys.append(keys)
        return self.delta.slice(0, 0)

    def scan(self) -> pa.Table:
        return self.delta.slice(0, 0)


def scan(number: int) -> Scan:
    return Scan(jvm=None, output=(Attribute(number, "c", '"integer"', nullable=True),), collection=f"t{number}")


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        (pa.field("c", pa.int32()), pa.field("c", pa.int32(), nullable=False), [1, 2]),
        (pa.field("c", PAIR), pa.field("c", OTHER_PAIR), [{"f": 1}, {"g": 2}]),
    ],
    ids=["nullability", "names of fields"],
)
def test_v9_branches_of_a_union_may_differ_in_the_form_of_a_key(
    one: pa.Field, other: pa.Field, values: list[object]
) -> None:
    a, b, right = scan(1), scan(2), scan(4)
    union = Union(jvm=None, output=(Attribute(3, "c", '"integer"', nullable=True),), children=(a, b))
    join = Join(
        jvm=None,
        output=(*union.output, *right.output),
        children=(union, right),
        join=JoinType.LEFT_OUTER,
        keys=((3, 4),),
        is_null_safe=(False,),
        has_more=False,
    )
    branches = [
        MemoryLeaf(pa.table([[value], [1]], schema=pa.schema([kind, DIFF_FIELD])))
        for kind, value in zip((one, other), values, strict=True)
    ]
    matched = MemoryLeaf(branches[0].delta.slice(0, 0))
    Cone(cut_plan(join), [*branches, matched]).collect()
    [keys] = matched.keys
    assert {str(row["k0"]).replace("g", "f") for row in keys.to_pylist()} == {
        str(values[0]),
        str(values[1]).replace("g", "f"),
    }
