"""Draws plots as SVG: groups of bars on a logarithmic scale, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#0b7285", "#e8590c", "#862e9c", "#5c940d", "#868e96", "#c92a2a")
_BAR, _GAP, _HEIGHT, _LEFT, _TOP, _BOTTOM = 14, 22, 220, 70, 46, 40


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float]], series: Sequence[str]) -> str:
    """Draw a group of bars per name, with one bar per series that has a value."""
    values = [value for group in groups.values() for value in group.values() if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    present = [name for name in series if any(name in group for group in groups.values())]
    wide = _GAP + _BAR * len(present)
    width = max(_LEFT + wide * len(groups) + _GAP, _LEFT + 110 * len(present))
    foot = _TOP + _HEIGHT

    def at(value: float) -> float:
        return foot - _HEIGHT * (math.log10(value) - low) / (high - low)

    drawn = [f'<text x="10" y="18" font-weight="bold">{escape(title)}</text>']
    for power in range(low, high + 1):
        y = at(10.0**power)
        drawn.append(f'<line x1="{_LEFT}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(10.0**power)} {escape(unit)}</text>'
        )
    for number, name in enumerate(present):
        x = _LEFT + 110 * number
        drawn.append(f'<rect x="{x}" y="27" width="10" height="10" fill="{_COLOURS[number]}"/>')
        drawn.append(f'<text x="{x + 14}" y="36">{escape(name)}</text>')
    for place, (name, group) in enumerate(groups.items()):
        left = _LEFT + _GAP / 2 + wide * place
        for number, one in enumerate(present):
            if group.get(one, 0) > 0:
                y = min(at(group[one]), foot - 1)
                shape = f'x="{left + _BAR * number:.1f}" y="{y:.1f}" width="{_BAR - 2}" height="{foot - y:.1f}"'
                told = f"<title>{escape(f'{name}, {one}: {group[one]:.4g} {unit}')}</title>"
                drawn.append(f'<rect {shape} fill="{_COLOURS[number]}">{told}</rect>')
        middle = left + _BAR * len(present) / 2
        drawn.append(f'<text x="{middle:.1f}" y="{foot + 16}" text-anchor="middle">{escape(name)}</text>')
    style = "text{font:11px system-ui,sans-serif;fill:#868e96}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {foot + _BOTTOM}" width="{width}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{style}</style>", *drawn, "</svg>", ""])


def _short(value: float) -> str:
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"
