"""Test tools that run the production code unchanged, without a test framework.

runtime, disk, cuts     a manual clock; a simulated disk (`disk_tree`: its files); a power cut at every operation
oracle, compare         compare a circuit with Spark and DuckDB; compare rows
queries, expressions    random queries (`relations`, `rare_relations`: their parts) and expressions
transactions, ledger    random transactions; the content of tables while transactions are written
workload, tpch, nexmark tables and queries as SQL files; the two benchmarks
small_engine, merging   an engine without Spark; a thread that merges arrangements
arrow                   Hypothesis strategies for Arrow tables
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
