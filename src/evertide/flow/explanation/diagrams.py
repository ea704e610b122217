"""Explanations as diagrams in Mermaid and Graphviz DOT.

Rows flow upwards: tables at the bottom, then a frame with the operators of each view, the view on top. Colours show
the cost of an operator.
"""

from __future__ import annotations

from collections.abc import Iterator

from evertide.flow.explanation.explanation import Cost, Explanation, Operator, ViewExplanation

_COLOURS: dict[Cost, str] = {
    Cost.NONE: "#eeeeee",
    Cost.DELTA: "#d5f0d5",
    Cost.TOUCHED_GROUPS: "#fdf3c4",
    Cost.SCAN: "#ffd9a8",
    Cost.WHOLE_INPUT: "#f6b0a8",
}
_WORDS_MAX = 60


def render_mermaid(explanation: Explanation) -> str:
    """A flowchart."""
    lines = ["flowchart BT"]
    lines += [f'  {_make_id("t", name)}[("{_escape(name)}")]' for name in _list_tables(explanation)]
    for view in explanation.views:
        lines.append(f'  subgraph {_make_id("s", view.name)}["{_escape(view.name)}"]')
        for operator in _list_inner_operators(view):
            node, label = _make_node_id(view, operator), _make_label(operator, "<br/>")
            lines.append(f'    {node}["{label}"]:::{_make_class_name(operator.cost)}')
        lines += ["  end", f'  {_make_id("v", view.name)}(["{_escape(view.name)}"])']
    lines += [f"  {below} --> {above}" for below, above in _list_edges(explanation)]
    lines += [f"  classDef {_make_class_name(cost)} fill:{colour},stroke:#888888" for cost, colour in _COLOURS.items()]
    return "\n".join(lines) + "\n"


def render_dot(explanation: Explanation) -> str:
    """A digraph."""
    lines = ["digraph evertide {", "  rankdir=BT;", '  node [shape=box, style=filled, fillcolor="#ffffff"];']
    lines += [
        f'  {_make_id("t", name)} [shape=cylinder, label="{_escape(name)}"];' for name in _list_tables(explanation)
    ]
    for view in explanation.views:
        lines += [f"  subgraph cluster_{_make_id('s', view.name)} {{", f'    label="{_escape(view.name)}";']
        for operator in _list_inner_operators(view):
            label, colour = _make_label(operator, "\\n"), _COLOURS[operator.cost]
            lines.append(f'    {_make_node_id(view, operator)} [label="{label}", fillcolor="{colour}"];')
        lines += ["  }", f'  {_make_id("v", view.name)} [shape=oval, label="{_escape(view.name)}"];']
    lines += [f"  {below} -> {above};" for below, above in _list_edges(explanation)]
    return "\n".join([*lines, "}"]) + "\n"


def _list_tables(explanation: Explanation) -> list[str]:
    views = {view.name for view in explanation.views}
    scans = [operator.stage for view in explanation.views for operator in view.operators if operator.is_scan]
    return [name for name in dict.fromkeys(scans) if name not in views]


def _list_inner_operators(view: ViewExplanation) -> list[Operator]:
    return [operator for operator in view.operators if not operator.is_scan]


def _list_edges(explanation: Explanation) -> Iterator[tuple[str, str]]:
    views = {view.name for view in explanation.views}
    for view in explanation.views:
        by_number = {operator.number: operator for operator in view.operators}

        def place(number: int, view: ViewExplanation = view, known: dict[int, Operator] = by_number) -> str:
            operator = known[number]
            if not operator.is_scan:
                return _make_node_id(view, operator)
            return _make_id("v" if operator.stage in views else "t", operator.stage)

        for operator in view.operators:
            for below in operator.inputs:
                yield place(below), place(operator.number)
        yield place(view.operators[0].number), _make_id("v", view.name)


def _make_node_id(view: ViewExplanation, operator: Operator) -> str:
    return f"{_make_id('o', view.name)}_{operator.number}"


def _make_id(kind: str, name: str) -> str:
    """An id of letters, digits and underscores that is unique per name."""
    return f"{kind}_" + "".join(
        letter if letter.isascii() and letter.isalnum() else f"_{ord(letter):x}_" for letter in name
    )


def _make_class_name(cost: Cost) -> str:
    return cost.replace(" ", "_")


def _make_label(operator: Operator, newline: str) -> str:
    words = operator.what if len(operator.what) <= _WORDS_MAX else f"{operator.what[: _WORDS_MAX - 1]}…"
    return f"{_escape(words)}{newline}{_escape(operator.how)}"


def _escape(text: str) -> str:
    """Replace quotes, which end a label, and angle brackets, which are tags in Mermaid unless they are entities."""
    return text.replace("\\", "\\\\").replace('"', "'").replace("<", "&lt;").replace(">", "&gt;")
