"""Compares the views of one circuit with Spark's own results, after each of some random transactions.

The views of a test share a circuit, as starting one for each would take minutes. If they fail together, each is tried
alone, so that a failure names the view, the transaction, and all that is needed to repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from evertide.flow import Circuit
from evertide.plan.script.statements import ViewStatement, parse_script
from tests.kit.ledger import Transaction
from tests.kit.oracle import Reference, drive, read_types
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = Path(__file__).parent / "views"
TABLES = (VIEWS / "tables.sql").read_text("utf-8")
KEYS = {"s": ["id"], "t": ["k"]}
POOLS = {"t.j": ['{"a": 1, "b": [1, 2]}', '{"a": "x"}', '{"b": [], "a": null}', "[1, 2]", "null", "no json", ""]}
_TOLD = "_told"


@dataclass(frozen=True, slots=True)
class Views:
    """Materialized views by name, the oracle's query for each, and plain views that they read."""

    queries: Mapping[str, str]
    told: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    """The lists of columns of plain views."""

    @property
    def script(self) -> str:
        made = [f"CREATE VIEW {name} {self.columns.get(name, '')} AS {query};" for name, query in self.plain.items()]
        made += [f"CREATE MATERIALIZED VIEW {name} AS {query};" for name, query in self.queries.items()]
        return "\n".join([TABLES, *made])


def views_of(spark: SparkSession, name: str) -> Views:
    """The views of a script in `views`: a plain view `x_told` is the oracle's query for `x`."""
    script = read_views(name)
    declared = [each for each in parse_script(spark, script, name) if isinstance(each, ViewStatement)]
    plain = {view.name: view.query for view in declared if not view.is_materialized}
    return Views(
        queries={view.name: view.query for view in declared if view.is_materialized},
        told={view.removesuffix(_TOLD): query for view, query in plain.items() if view.endswith(_TOLD)},
        plain={view: query for view, query in plain.items() if not view.endswith(_TOLD)},
        columns={view.name: f"({', '.join(view.columns)})" for view in declared if view.columns},
    )


@cache
def read_views(name: str) -> str:
    return (VIEWS / f"{name}.sql").read_text("utf-8")


def transactions_of(circuit: Circuit, seed: int, count: int) -> Iterator[Transaction]:
    """Small transactions, so that groups of few rows appear and disappear."""
    return random_transactions(circuit.tables, seed, keys=KEYS, pools=POOLS, count=count, rows_each=6, rows_huge=24)


def check(spark: SparkSession, views: Views, seed: int, count: int, *, spark_every: int = 1) -> None:
    """Drive the views. If that fails, drive each alone, and report the first that fails by itself."""
    try:
        _Run(spark, views, seed, count).drive(spark_every)
    except Exception:
        for name, query in views.queries.items():
            if views.plain or name in views.told:
                continue
            run = _Run(spark, Views({name: query}), seed, count)
            try:
                run.drive(spark_every)
            except Exception as error:
                raise AssertionError(f"seed {seed}\nview {name}: {query}\n{run.last}\n{error}") from error
        raise


class _Run:
    def __init__(self, spark: SparkSession, views: Views, seed: int, count: int) -> None:
        self._spark, self._views, self._seed, self._count = spark, views, seed, count
        self.last = "at creation"

    def drive(self, spark_every: int) -> None:
        circuit, told = Circuit(self._spark, self._views.script), {**self._views.queries, **self._views.told}
        reference = Reference(self._spark, circuit.tables, {**self._views.plain, **told}, read_types(circuit.program))
        drive(circuit, reference, told, self._record(circuit), spark_every=spark_every)

    def _record(self, circuit: Circuit) -> Iterator[Transaction]:
        for number, deltas in enumerate(transactions_of(circuit, self._seed, self._count)):
            rows = "\n".join(f"  {table} {row}" for table, delta in deltas.items() for row in delta.to_pylist())
            self.last = f"transaction {number}:\n{rows}"
            yield deltas
