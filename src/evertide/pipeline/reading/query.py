"""A query (`Question`) and its result (`Answer`), for every query engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from evertide.media import ARROW


class EngineChoice(StrEnum):
    auto = "auto"
    duckdb = "duckdb"
    spark = "spark"


@dataclass(frozen=True, slots=True)
class Question:
    """A query, its parameters, and the time that it reads."""

    sql: str
    as_of: int | None = None
    """The time of all collections; by default the last that all of them have."""
    engine: EngineChoice = EngineChoice.auto
    limit: int | None = None
    """The maximum number of rows; `Answer.is_truncated` tells whether there are more."""
    parameters: Sequence[Any] = ()
    media: str = ARROW
    """The format in which a query process encodes the rows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query, and the transaction that it was computed at."""

    time: int
    rows: pa.Table
    is_truncated: bool
    engine: EngineChoice
    took_ms: float
    stale: tuple[str, ...] = ()
    """A sentence for each view whose content stands at an earlier transaction than the other collections."""
