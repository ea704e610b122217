"""Explanations as diagrams in Mermaid and Graphviz DOT.

Rows flow upwards: tables at the bottom, then a frame with the operators of each view, the view on top. Colours show
the cost of an operator.
"""

from __future__ import annotations

from collections.abc import Iterator

from evertide.flow.explanation.explanation import Cost, Explanation, Operator, ViewExplanation

__all__ = ["dot", "mermaid"]

_COLOURS: dict[Cost, str] = {
    "none": "#eeeeee",
    "delta": "#d5f0d5",
    "touched groups": "#fdf3c4",
    "scan": "#ffd9a8",
    "whole input": "#f6b0a8",
}
_WORDS_MAX = 60


def mermaid(explanation: Explanation) -> str:
    """A flowchart."""
    lines = ["flowchart BT"]
    lines += [f'  {_id("t", name)}[("{_escape(name)}")]' for name in _tables(explanation)]
    for view in explanation.views:
        lines.append(f'  subgraph {_id("s", view.name)}["{_escape(view.name)}"]')
        lines += [
            f'    {_node(view, operator)}["{_label(operator, "<br/>")}"]:::{_class(operator.cost)}'
            for operator in _inner(view)
        ]
        lines += ["  end", f'  {_id("v", view.name)}(["{_escape(view.name)}"])']
    lines += [f"  {below} --> {above}" for below, above in _edges(explanation)]
    lines += [f"  classDef {_class(cost)} fill:{colour},stroke:#888888" for cost, colour in _COLOURS.items()]
    return "\n".join(lines) + "\n"


def dot(explanation: Explanation) -> str:
    """A digraph."""
    lines = ["digraph evertide {", "  rankdir=BT;", '  node [shape=box, style=filled, fillcolor="#ffffff"];']
    lines += [f'  {_id("t", name)} [shape=cylinder, label="{_escape(name)}"];' for name in _tables(explanation)]
    for view in explanation.views:
        lines += [f"  subgraph cluster_{_id('s', view.name)} {{", f'    label="{_escape(view.name)}";']
        for operator in _inner(view):
            label, colour = _label(operator, "\\n"), _COLOURS[operator.cost]
            lines.append(f'    {_node(view, operator)} [label="{label}", fillcolor="{colour}"];')
        lines += ["  }", f'  {_id("v", view.name)} [shape=oval, label="{_escape(view.name)}"];']
    lines += [f"  {below} -> {above};" for below, above in _edges(explanation)]
    return "\n".join([*lines, "}"]) + "\n"


def _tables(explanation: Explanation) -> list[str]:
    views = {view.name for view in explanation.views}
    scans = [operator.stage for view in explanation.views for operator in view.operators if operator.kind == "Scan"]
    return [name for name in dict.fromkeys(scans) if name not in views]


def _inner(view: ViewExplanation) -> list[Operator]:
    return [operator for operator in view.operators if operator.kind != "Scan"]


def _edges(explanation: Explanation) -> Iterator[tuple[str, str]]:
    views = {view.name for view in explanation.views}
    for view in explanation.views:
        by_number = {operator.number: operator for operator in view.operators}

        def place(number: int, view: ViewExplanation = view, known: dict[int, Operator] = by_number) -> str:
            operator = known[number]
            if operator.kind != "Scan":
                return _node(view, operator)
            return _id("v" if operator.stage in views else "t", operator.stage)

        for operator in view.operators:
            for below in operator.inputs:
                yield place(below), place(operator.number)
        yield place(view.operators[0].number), _id("v", view.name)


def _node(view: ViewExplanation, operator: Operator) -> str:
    return f"{_id('o', view.name)}_{operator.number}"


def _id(kind: str, name: str) -> str:
    """An id of letters, digits and underscores that is unique per name."""
    return f"{kind}_" + "".join(
        letter if letter.isascii() and letter.isalnum() else f"_{ord(letter):x}_" for letter in name
    )


def _class(cost: Cost) -> str:
    return cost.replace(" ", "_")


def _label(operator: Operator, newline: str) -> str:
    words = operator.what if len(operator.what) <= _WORDS_MAX else f"{operator.what[: _WORDS_MAX - 1]}…"
    return f"{_escape(words)}{newline}{_escape(operator.how)}"


def _escape(text: str) -> str:
    """Replace quotes, which end a label, and angle brackets, which are tags in Mermaid unless they are entities."""
    return text.replace("\\", "\\\\").replace('"', "'").replace("<", "&lt;").replace(">", "&gt;")
