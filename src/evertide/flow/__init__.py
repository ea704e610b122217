"""Incremental operators and arrangements: table deltas in, view deltas out."""

from evertide.flow.circuit import Circuit, CircuitState
from evertide.flow.explanation.explain import explain
from evertide.flow.explanation.explanation import Explanation

__all__ = ["Circuit", "CircuitState", "Explanation", "explain"]
