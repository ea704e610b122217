"""How each operator of the views of a workload is maintained, as a golden file.

A change of these files is a change of what transactions cost: EVERTIDE_GOLDEN=write writes them anew, and the
difference is for people to read. Nothing is computed again as a whole; should a view ever need it, it is named here.
"""

from __future__ import annotations

import os
from pathlib import Path

from evertide.flow import Circuit
from evertide.flow.explanation.explain import explain

__all__ = ["check_maintenance"]

GOLDEN = Path(__file__).parent.parent / "golden" / "maintenance"
WRITE = os.environ.get("EVERTIDE_GOLDEN") == "write"
WHOLE: list[tuple[str, str]] = []
"""Views, and their operators, that are computed again as a whole."""


def check_maintenance(circuit: Circuit, name: str) -> None:
    explanation = explain(circuit)
    assert [(view, operator.what) for view, operator in explanation.whole] == WHOLE
    found = explanation.text(has_state=False) + "\n"
    path = GOLDEN / f"{name}.txt"
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8")
