"""Test tools that ship with Evertide: a manual runtime, a disk that loses power, and every moment at which it may.

They need no test framework, and run the production code unchanged.
"""

from evertide.testing.cuts import CutsFailed, every_cut, one_cut
from evertide.testing.disk import Operation, PowerCut, SimulatedDisk, SimulatedFiles, SimulatedMeta, Survivors
from evertide.testing.runtime import ManualRuntime, RandomStream

__all__ = [
    "CutsFailed",
    "ManualRuntime",
    "Operation",
    "PowerCut",
    "RandomStream",
    "SimulatedDisk",
    "SimulatedFiles",
    "SimulatedMeta",
    "Survivors",
    "every_cut",
    "one_cut",
]
