"""How parts become tasks: every row belongs to one task, which reads every part that may hold it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from evertide.rows.changes import make_changes_schema
from evertide.settings import Settings
from evertide.shard.parts.part import Part, encode_parts
from evertide.shard.parts.part_groups import is_inside
from evertide.shard.parts.split import Group, Span, split, split_by_time
from evertide.shard.read import TimeWindow

BLOBS = Settings(inline_bytes_max=1)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "integer": (pa.int32(), list(range(-20, 20))),
    "string": (pa.string(), [f"{'x' * 70}{chr(97 + at)}" if at % 3 else chr(97 + at) * 3 for at in range(26)]),
    "date": (pa.date32(), [date(1969, 12, 20) + timedelta(at) for at in range(40)]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [MOMENT + timedelta(microseconds=at) for at in range(40)]),
    "decimal": (pa.decimal128(12, 3), [Decimal(at).scaleb(-1) for at in range(-20, 20)]),
}


def part(kind: Any, values: Sequence[Any], diff: int = 1, time: int = 0, size: int = 100) -> Part:
    rows = {"v": values, "__time": [time] * len(values), "__diff": [diff] * len(values)}
    schema = make_changes_schema(pa.schema([("v", kind)]))
    [(found, _)] = encode_parts(pa.table(rows, schema=schema), settings=BLOBS)
    return type(found)(
        **{name: getattr(found, name) for name in found.__struct_fields__} | {"bytes": size, "key": f"parts/{values!r}"}
    )


def holders(groups: Sequence[Group], kind: Any, value: Any) -> list[Group]:
    column = pa.chunked_array([pa.array([value], kind)])
    return [group for group in groups if group.span is None or is_inside(column, group.span).to_pylist() == [True]]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_meet_in_the_one_task_that_reads_all_their_parts(kind: str) -> None:
    declared, values = KINDS[kind]
    values = sorted(values)
    large = [part(declared, values[at : at + 8]) for at in range(0, len(values), 8)]
    small = part(declared, [values[1], values[-1], None], diff=-1, size=5)
    nulls = part(declared, [None, None], size=5)
    parts = [*large, small, nulls]
    groups = split(parts, pa.schema([("v", declared)]), 100)
    assert len(groups) > 2
    assert {group.span.column for group in groups if group.span} == {"v"}
    for value in [*values, None]:
        [holder] = holders(groups, declared, value)
        having = [one for at, one in enumerate(large) if value in values[at * 8 : at * 8 + 8]]
        having += [small] if value in (values[1], values[-1], None) else []
        having += [nulls] if value is None else []
        assert {one.key for one in having} <= {one.key for one in holder.parts}
    read = sum(one.bytes for group in groups for one in group.parts)
    assert read <= 2 * sum(one.bytes for one in parts)


def test_parts_without_statistics_are_read_by_every_task() -> None:
    large = [part(pa.int64(), range(at, at + 8)) for at in range(0, 40, 8)]
    inline = type(large[0])(
        rows=1, bytes=1, checksum="", digest="", count=-1, retractions=1, time_min=0, time_max=0, ranges={}
    )
    groups = split([*large, inline], pa.schema([("v", pa.int64())]), 100)
    assert len(groups) == 5
    assert all(inline in group.parts for group in groups)


def test_parts_that_all_overlap_are_one_task() -> None:
    parts = [part(pa.int64(), [0, 100 + at], diff=-1 if at else 1) for at in range(8)]
    [group] = split(parts, pa.schema([("v", pa.int64())]), 100)
    assert (group.span, group.only_adds, len(group.parts)) == (None, False, 8)


def test_parts_that_would_be_read_three_times_are_one_task() -> None:
    parts = [part(pa.int64(), [at * 10, at * 10 + 25], diff=-1) for at in range(10)]
    assert len(split(parts, pa.schema([("v", pa.int64())]), 100)) == 1


def test_parts_that_would_go_mostly_to_one_task_are_one_task() -> None:
    parts = [part(pa.int64(), [0, 8], size=900), part(pa.int64(), [20, 28], size=50)]
    parts.append(part(pa.int64(), [30, 38], diff=-1, size=50))
    assert len(split(parts, pa.schema([("v", pa.int64())]), 400)) == 1


def test_floats_are_not_cut() -> None:
    parts = [part(pa.float64(), [float(at)], diff=-1) for at in range(8)]
    [group] = split(parts, pa.schema([("v", pa.float64())]), 100)
    assert group.span is None


def test_nothing_to_read_is_one_empty_task() -> None:
    [group] = split([], pa.schema([("v", pa.int64())]), 100)
    assert group.parts == ()
    [group] = split_by_time([], TimeWindow(3, 9), 100)
    assert group.parts == ()


def test_parts_of_one_time_stay_together() -> None:
    parts = [part(pa.int64(), [at], time=at // 3) for at in range(12)]
    groups = split_by_time(parts, TimeWindow(0, 4), 100)
    assert len(groups) == 4
    for group in groups:
        assert len({one.time_min for one in group.parts}) == 1
        assert len(group.parts) == 3


def test_tasks_are_of_like_size_and_no_more_than_parts() -> None:
    parts = [part(pa.int64(), [at], size=at * 10) for at in range(1, 11)]
    sizes = [sum(one.bytes for one in group.parts) for group in split(parts, pa.schema([("v", pa.int64())]), 110)]
    assert sizes == [110] * 5
    assert len(split(parts, pa.schema([("v", pa.int64())]), 1)) == 10


def test_large_parts_with_the_same_minimum_are_one_task() -> None:
    """All large parts begin at the same value, so there is no place to cut."""
    parts = [part(pa.int64(), [1, 2], diff=-1), part(pa.int64(), [1, 3])]
    [group] = split(parts, pa.schema([("v", pa.int64())]), 1)
    assert group.span is None
    assert Span("v", 5, None).may_hold(parts[0], pa.schema([("v", pa.int64())])) is False
