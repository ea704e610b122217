"""A script as plans: its tables, and its materialized views in the order of declaration, those in Python last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from evertide.errors import InvalidInput
from evertide.plan.algebra import Algebra
from evertide.plan.catalog import Catalog, Query
from evertide.plan.catalyst import Catalyst
from evertide.plan.feeding import fed
from evertide.plan.identity import key_of
from evertide.plan.nodes import Attribute, Node
from evertide.plan.properties import SinkProperties, check_properties, key_property, sink_properties
from evertide.plan.refusals import refuse_unmaintainable
from evertide.plan.statements import TableStatement, ViewStatement, parse_script
from evertide.plan.view_function import ViewFunction

__all__ = ["Program"]


class Program:
    def __init__(
        self, spark: SparkSession, script: str, path: str = "SQL", *, functions: Sequence[ViewFunction] = ()
    ) -> None:
        self.catalog = Catalog(spark)
        self.catalyst = Catalyst(self.catalog.session)
        self._algebra = Algebra(self.catalyst, self.catalog)
        self.statements = parse_script(spark, script, path)
        self.functions = tuple(functions)
        self.tables: dict[str, tuple[Attribute, ...]] = {}
        self.views: dict[str, Node] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        """Per materialized view, the tables and materialized views that it reads itself."""
        self.keys: dict[str, tuple[str, ...]] = {}
        """Per materialized view, columns that tell its rows apart; none if that is not known."""
        self.sinks: dict[str, tuple[SinkProperties, ...]] = {}
        """Per table and materialized view, where it is written to."""
        declared = fed(self.statements)
        self.table_statements = [each for each in declared if isinstance(each, TableStatement)]
        for statement in declared:
            if isinstance(statement, TableStatement):
                self._add_table(statement)
            else:
                self._add_view(statement)
        for function in self.functions:
            self._check_name(function)
            self._add_view(function)

    def _check_name(self, function: ViewFunction) -> None:
        declared = (*self.statements, *self.functions)
        first = next(other for other in declared if other.name.lower() == function.name.lower())
        if first is not function:
            why = f"{function.name!r} is declared before, at {first.where}"
            raise InvalidInput(where=function.where, why=why)

    def _add_table(self, statement: TableStatement) -> None:
        where = f"{statement.where}, table {statement.name!r}"
        check_properties(statement.properties, is_view=False, where=where)
        self.sinks[statement.name] = sink_properties(statement.properties, where)
        with _told(where):
            self.catalog.add_table(statement)
        self.tables[statement.name] = tuple(
            Attribute(-1, column.name, column.type, column.nullable) for column in statement.columns
        )

    def _add_view(self, statement: ViewStatement | ViewFunction) -> None:
        where = f"{statement.where}, view {statement.name!r}"
        check_properties(statement.properties, is_view=True, where=where)
        self.sinks[statement.name] = sink_properties(statement.properties, where)
        if self.sinks[statement.name] and not statement.is_materialized:
            why = "'evertide.sinks': only a materialized view has content of its own to write"
            raise InvalidInput(where=where, why=why)
        with _told(where):
            query: Query = self.catalog.add_view(statement)
            refuse_unmaintainable(query, self.catalog)
            if not statement.is_materialized:
                return
            plan = self._algebra.plan(query)
        names = [attribute.name.lower() for attribute in plan.output]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(where=where, why=f"two columns are named {name!r}: give one another name by AS")
        declared = key_property(statement.properties, [attribute.name for attribute in plan.output], where)
        self.keys[statement.name] = declared or key_of(plan)
        self.views[statement.name] = plan
        self.reads[statement.name] = query.reads

    def needed(self, views: Iterable[str]) -> set[str]:
        """These views and those that they read, directly or not."""
        found: set[str] = set()
        waiting = list(views)
        while waiting:
            name = waiting.pop()
            if name in self.views and name not in found:
                found.add(name)
                waiting += self.reads[name]
        return found


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Some things Spark finds out later than it could: names that it cannot use, types that are switched off."""
    try:
        yield
    except AnalysisException as error:
        why = next(line.strip() for line in str(error).splitlines() if line.strip())
        raise InvalidInput(where=where, why=why) from error
