"""Incremental operators and their state: table deltas in, view deltas out.

circuit         the operators of a set of views, one transaction at a time
trace           cuts plans into stages, and traces keys to leaves
stage           a part of a plan that runs as one fragment
cone            the rows that a delta can touch
collection      a table, or the rows of an operator, inside a circuit
linear          the delta of a stage of joins, without the pairs of unchanged rows
pairs           estimates whether joins make many more rows than they read
leaf_rows       rows of a leaf before and after a transaction
blame           finds the rows that make a step fail
aggregates      additive aggregates, min and max, top-k
state           arrangements
wide            views computed from scratch by executors
explanation     how each operator is maintained
"""

from evertide.flow.circuit import Circuit, CircuitState
from evertide.flow.explanation.explain import explain
from evertide.flow.explanation.explanation import Explanation

__all__ = ["Circuit", "CircuitState", "Explanation", "explain"]
