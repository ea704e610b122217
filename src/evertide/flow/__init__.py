"""Incremental operators and arrangements: table deltas in, view deltas out."""

from evertide.flow.circuit import Circuit

__all__ = ["Circuit"]
