"""Measures alternating rounds of a candidate and its peer, so that a noisy machine affects both equally."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

_SPARKS = ("PYSPARK_GATEWAY", "SPARK_")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. `goal` is the required `value`, as text; `met` is None if there is no goal."""

    name: str
    value: str
    detail: str
    goal: str = ""
    met: bool | None = None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Timing:
    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        ordered = sorted(seconds)
        tenth = len(ordered) // 10
        return cls(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])

    def __str__(self) -> str:
        return f"{_readable(self.median_s)} ({_readable(self.low_s)} - {_readable(self.high_s)})"


def _readable(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} us"
    )


def alternate(
    rounds: int, candidate: Callable[[int], object], peer: Callable[[int], object], *, warm_up: int = 1
) -> tuple[Timing, Timing]:
    """Run both alternately; the order within a round changes from round to round."""
    taken: dict[int, list[float]] = {0: [], 1: []}
    for number in range(-warm_up, rounds):
        pair = [(0, candidate), (1, peer)]
        for which, call in pair if number % 2 == 0 else reversed(pair):
            begun = time.perf_counter()
            call(number)
            if number >= 0:
                taken[which].append(time.perf_counter() - begun)
    return Timing.of(taken[0]), Timing.of(taken[1])


def own_spark() -> dict[str, str]:
    """The environment for a process with its own Spark: without the variables that this process's Spark set."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_SPARKS) or name in ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS")  # set by the user or a test
    }
