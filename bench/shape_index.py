"""Measures how fast the shapes that match a batch of changed rows are found among many shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.measure import Figure
from evertide.pgexpr.clause import parse_where
from evertide.shapes.log.index import ShapeIndex

Progress = Callable[[int, int], None]

SCHEMA = pa.schema([("id", pa.int64()), ("owner", pa.int64()), ("state", pa.string()), ("amount", pa.float64())])
GOAL_ROWS_S = 20_000
CLAUSES = (
    ("owner = const", "owner = $1"),
    ("owner = const AND state = 'open'", "owner = $1 AND state = 'open'"),
    ("owner = const AND amount > const", "owner = $1 AND amount > $1"),
)


@dataclass(frozen=True, slots=True)
class ShapeIndexSize:
    shapes: tuple[int, ...] = (100, 10_000)
    rows: int = 20_000
    batch: int = 1_000
    rounds: int = 5

    @classmethod
    def short(cls) -> ShapeIndexSize:
        return cls((10, 100), 200, 100, 1)


def shape_index(size: ShapeIndexSize, moved: Progress) -> list[Figure]:
    """Rows per second on one core, if one row in ten matches a shape, and if all do."""
    cases = [(clause, shapes, hit) for clause in CLAUSES for shapes in size.shapes for hit in (0.1, 1.0)]
    figures = []
    for done, ((name, clause), shapes, hit) in enumerate(cases):
        moved(done, len(cases))
        index = ShapeIndex()
        for number in range(shapes):
            index.add(number, parse_where(clause, {"1": str(number)}, SCHEMA))
        rate = max(_rate(index, shapes, hit, size) for _ in range(size.rounds))
        figures.append(
            Figure(
                name=f"{shapes:,} shapes, {name}, {hit:.0%} of rows match",
                value=f"{rate:,.0f} rows/s",
                detail=f"batches of {size.batch:,} rows, {size.rows:,} in all; the best of {size.rounds} rounds",
                goal=f"{GOAL_ROWS_S:,} rows/s",
                met=rate >= GOAL_ROWS_S,
            )
        )
    return figures


def _rate(index: ShapeIndex, shapes: int, hit: float, size: ShapeIndexSize) -> float:
    batches = [_batch(shapes, hit, size.batch, seed) for seed in range(size.rows // size.batch)]
    start_s = time.process_time()
    for batch in batches:
        index.find_matches(batch)
    return size.rows / max(time.process_time() - start_s, 1e-9)


def _batch(shapes: int, hit: float, count: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    owners = np.where(random.random(count) < hit, random.integers(0, shapes, count), -1)
    states = np.where(random.random(count) < 0.5, "open", "done")
    columns = [np.arange(count), owners, states.astype(object), random.random(count) * shapes]
    return pa.table(columns, schema=SCHEMA)
