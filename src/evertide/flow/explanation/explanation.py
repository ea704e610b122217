"""The result of `explain`, as values, text and JSON.

Operators of a view are listed with parents first, each once, and are numbered from 1 within the view. Keys of the JSON
are stable: new ones may be added, and none changes its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from evertide.tables import TextTable, render_html_lines

_WIDTH_MAX = 100


class Cost(StrEnum):
    """The rows that an operator processes for a small transaction."""

    NONE = "none"
    DELTA = "delta"
    TOUCHED_GROUPS = "touched groups"
    SCAN = "scan"
    """All rows of the other side of a join."""
    WHOLE_INPUT = "whole input"


@dataclass(frozen=True, slots=True)
class ExplainedArrangement:
    """An arrangement that the circuit has."""

    name: str
    of: str
    """The collection."""
    key: tuple[str, ...]
    """Names of columns; none if the arrangement is only scanned."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Operator:
    number: int
    kind: str
    what: str
    """A description: `Join Inner on auction = id`."""
    how: str
    """How the operator is maintained."""
    cost: Cost
    stage: str
    """The collection of the operator's stage; for a Scan, the table or view."""
    state: tuple[str, ...]
    """Names of the arrangements that the operator reads or maintains."""
    inputs: tuple[int, ...]

    @property
    def is_scan(self) -> bool:
        """Whether the operator reads a table or a view."""
        return self.kind == "Scan"


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Numbers of runs of the view's stages by kind, since the circuit was created."""

    small: int = 0
    large: int = 0
    wide: int = 0
    """By executors that also read and wrote the rows (`evertide.flow.wide`)."""
    recompute: int = 0


@dataclass(frozen=True, slots=True)
class ViewExplanation:
    name: str
    operators: tuple[Operator, ...]
    """The first one outputs the view's rows."""
    run_counts: RunCounts = field(default_factory=RunCounts)

    def list_lines(self) -> Iterator[tuple[str, Operator | None]]:
        """The tree as indented texts, each with its operator; None if the operator was listed before."""
        listed: set[int] = set()
        by_number = {operator.number: operator for operator in self.operators}

        def walk(number: int, depth: int) -> Iterator[tuple[str, Operator | None]]:
            operator, indent = by_number[number], "  " * depth
            if number in listed and operator.inputs:
                yield f"{indent}{operator.what}", None
                return
            listed.add(number)
            yield f"{indent}{operator.what}", operator
            for child in operator.inputs:
                yield from walk(child, depth + 1)

        return walk(self.operators[0].number, 1)


@dataclass(frozen=True, slots=True)
class Explanation:
    views: tuple[ViewExplanation, ...]
    arrangements: tuple[ExplainedArrangement, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(view.name for view in self.views)

    def select_view(self, view: str) -> Explanation:
        """The explanation of one view and its state."""
        views = tuple(each for each in self.views if each.name == view)
        kept = {name for each in views for operator in each.operators for name in operator.state}
        return Explanation(views, tuple(each for each in self.arrangements if each.name in kept))

    def text(self, *, has_state: bool = True) -> str:
        """A tree per view: operator, how it is maintained, cost. `has_state` adds the state."""
        blocks = [_render_view(view, self._states() if has_state else {}) for view in self.views]
        if has_state:
            blocks.append(self._render_arrangements())
        return "\n".join(block for block in blocks if block)

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, strings and numbers for JSON."""
        return {
            "views": [
                {
                    "name": view.name,
                    "operators": _to_builtins(view.operators),
                    "ways": _to_builtins(view.run_counts),
                }
                for view in self.views
            ],
            "arrangements": _to_builtins(self.arrangements),
        }

    def json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        return self.text()

    def list_tables(self) -> Iterator[TextTable]:
        """A table of operators per view."""
        for view in self.views:
            rows = [
                (words, "as above", "") if operator is None else (words, operator.how, operator.cost)
                for words, operator in view.list_lines()
            ]
            yield TextTable(view.name, ("operator", "how it is maintained", "cost of a small transaction"), rows)

    def _repr_html_(self) -> str:
        return render_html_lines(self.list_tables())

    def _states(self) -> dict[str, ExplainedArrangement]:
        return {each.name: each for each in self.arrangements}

    def _render_arrangements(self) -> str:
        rows = [
            (f"  {each.name}", _describe_key(each), f"{each.rows:,} rows", f"{each.bytes:,} bytes")
            for each in self.arrangements
        ]
        return "\n".join(["state", *_align(rows)]) if rows else ""


class Explanations(list[Explanation]):
    """The explanation of each cohort of views."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self)


def _to_builtins(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, enums as strings."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _describe_key(each: ExplainedArrangement) -> str:
    return f"{each.of} by ({', '.join(each.key)})" if each.key else f"all of {each.of}"


def _render_view(view: ViewExplanation, states: dict[str, ExplainedArrangement]) -> str:
    rows: list[tuple[str, ...]] = []
    for words, operator in view.list_lines():
        if operator is None:
            rows.append((_shorten(words), "as above"))
            continue
        kept = [_describe_key(states[name]) for name in operator.state if name in states]
        rows.append((_shorten(words), operator.how, operator.cost, *([", ".join(kept)] if kept else [])))
    return "\n".join([view.name, *_align(rows)])


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align columns; the last one of a row is not padded."""
    count = max((len(row) for row in rows), default=0)
    widths = [max((len(row[at]) for row in rows if len(row) > at + 1), default=0) for at in range(count)]
    return [
        " | ".join(cell.ljust(widths[at]) if at < len(row) - 1 else cell for at, cell in enumerate(row)) for row in rows
    ]


def _shorten(text: str) -> str:
    return text if len(text) <= _WIDTH_MAX else f"{text[: _WIDTH_MAX - 1]}…"
