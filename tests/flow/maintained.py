"""How each operator of the views of a workload is maintained, as a golden file.

A change of these files changes the cost of transactions: EVERTIDE_GOLDEN=write rewrites them, and a person reviews the
difference. No view is recomputed as a whole; if one ever needs that, it is listed here.
"""

from __future__ import annotations

import os
from pathlib import Path

from evertide.flow import Circuit
from evertide.flow.explanation.explain import explain
from evertide.flow.explanation.explanation import Cost

GOLDEN = Path(__file__).parent.parent / "golden" / "maintenance"
WRITE = os.environ.get("EVERTIDE_GOLDEN") == "write"
WHOLE: list[tuple[str, str]] = []
"""Views, and their operators, that are recomputed as a whole."""


def check_maintenance(circuit: Circuit, name: str) -> None:
    explanation = explain(circuit)
    operators = [(view.name, operator) for view in explanation.views for operator in view.operators]
    assert [(view, operator.what) for view, operator in operators if operator.cost is Cost.WHOLE_INPUT] == WHOLE
    found = explanation.text(has_state=False) + "\n"
    path = GOLDEN / f"{name}.txt"
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8")
