"""A question, and its answer: what every engine takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

__all__ = ["Answer", "Chosen", "Question"]


class Chosen(StrEnum):
    """Which engine is to answer."""

    auto = "auto"
    duckdb = "duckdb"
    spark = "spark"


@dataclass(frozen=True, slots=True)
class Question:
    sql: str
    as_of: int | None = None
    """The time of all collections; the last that all of them have, if it is not given."""
    engine: Chosen = Chosen.auto
    limit: int | None = None
    """Rows of the answer; what lies beyond is left out, and said."""
    parameters: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    time: int
    rows: pa.Table
    is_truncated: bool
    engine: Chosen
    took_ms: float
