"""A script or a project as plans: its tables, and its materialized views.

1. A view comes after the views that it reads, in whatever order they are declared: if Spark does not know a name that
   is declared later, that view is added first. Views that read each other in a circle are refused.
2. Otherwise views keep the order of their declarations, with those in Python last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias, TypeVar

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from evertide.errors import InvalidInput
from evertide.plan.algebra.algebra import Algebra
from evertide.plan.algebra.nodes import Attribute, PlanNode
from evertide.plan.algebra.plan_columns import check_type, contains_type
from evertide.plan.algebra.refusals import refuse_unmaintainable
from evertide.plan.algebra.row_key import derive_key
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.failure import silence_traces
from evertide.plan.program.flows import AppendedView, AppendFlow, resolve_flows
from evertide.plan.program.project import Project
from evertide.plan.program.project_files import Declarations, ProjectView, apply_configuration, read_files
from evertide.plan.program.project_inputs import ProjectSession
from evertide.plan.program.properties import SinkProperties, check_properties, read_key, read_sinks
from evertide.plan.program.view_function import ViewFunction
from evertide.plan.script.catalog import SETTINGS as PLANNING
from evertide.plan.script.catalog import Query, SparkCatalog
from evertide.plan.script.error_list import ErrorList
from evertide.plan.script.statements import Statement, TableStatement, ViewStatement, parse_script

logger = logging.getLogger(__name__)

_CHAR_SETTINGS = (
    "spark.sql.charAsVarchar",
    "spark.sql.legacy.charVarcharAsString",
    "spark.sql.preserveCharVarcharTypeInfo",
)
_View: TypeAlias = ViewStatement | ViewFunction | AppendedView | ProjectView
_Named = TypeVar("_Named", Statement | AppendFlow, TableStatement, ViewFunction, ProjectView)


class Program:
    """The tables and views of a script, analyzed by Spark."""

    def __init__(
        self,
        spark: SparkSession,
        script: str | Project,
        path: str = "SQL",
        *,
        functions: Sequence[ViewFunction] = (),
        spelling: Mapping[str, str] | None = None,
    ) -> None:
        """`spelling` has the spelling of names of tables and views, by the name in lower case."""
        self._spelling = spelling or {}
        self.catalog = SparkCatalog(spark)
        self._inputs: ProjectSession | None = None
        self._errors = ErrorList()
        declarations = self._read(spark, script, path)
        self.catalyst = Catalyst(self.catalog.session)
        self._algebra = Algebra(self.catalyst, self.catalog)
        spelled = [self._spell(each) for each in declarations.statements]
        self.statements: list[Statement] = [each for each in spelled if not isinstance(each, AppendFlow)]
        self.functions = tuple(map(self._spell, functions))
        self.tables: dict[str, tuple[Attribute, ...]] = {}
        self.views: dict[str, PlanNode] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        """Per materialized view, the tables and materialized views that it reads itself."""
        self.keys: dict[str, tuple[str, ...]] = {}
        """Per materialized view, the columns of its key; none if no key is known."""
        self.compared_types: dict[str, dict[str, str]] = {}
        """Per table and materialized view, by column, the type by which Spark pads comparisons of a CHAR column."""
        self.refused_keys: dict[str, str] = {}
        """Per table with a primary key that no new table may have, the reason. A stored table keeps such a key."""
        self.sinks: dict[str, tuple[SinkProperties, ...]] = {}
        """Per table and materialized view, its sinks."""
        try:
            declared = resolve_flows(spelled)
        except InvalidInput:
            self._errors.raise_all()  # a flow may lack a table that cannot be parsed
            raise
        self.table_statements = [each for each in declared if isinstance(each, TableStatement)]
        views = [each for each in declared if not isinstance(each, TableStatement)]
        for statement in self.table_statements:
            with self._errors.collect(statement.name):
                self._add_table(statement)
        written: list[ViewFunction | ProjectView] = [*map(self._spell, declarations.views), *self.functions]
        for function in written:
            self._check_name(function, written)
        self._add_views([*views, *written])
        self._errors.raise_all()
        self._add_inputs()

    def _read(self, spark: SparkSession, script: str | Project, path: str) -> Declarations:
        if isinstance(script, Project):
            return self._read_project(script)
        return Declarations([*parse_script(spark, script, path, errors=self._errors)])

    def _spell(self, declared: _Named) -> _Named:
        return replace(declared, name=self._spelling.get(declared.name.lower(), declared.name))

    def _read_project(self, project: Project) -> Declarations:
        decided = apply_configuration(self.catalog.session, project, PLANNING)
        for name in decided:
            logger.warning(
                "%s: ignoring the setting %s, which Evertide sets itself; no result depends on it", project.where, name
            )
        self._inputs = ProjectSession(self.catalog.session, self.catalog.add_table)
        return read_files(project, self._inputs)

    def _check_name(
        self, function: ViewFunction | ProjectView, functions: Iterable[ViewFunction | ProjectView]
    ) -> None:
        declared = (*self.statements, *functions)
        first = next(other for other in declared if other.name.lower() == function.name.lower())
        if first is not function:
            why = f"{function.name!r} is already declared, at {first.where}"
            raise InvalidInput(where=function.where, why=why)

    def _add_views(self, views: Sequence[_View]) -> None:
        waiting = {view.name.lower(): view for view in views}
        for name in list(waiting):
            if name in waiting:
                self._add_after_inputs(name, waiting, ())

    def _add_after_inputs(self, name: str, waiting: dict[str, _View], readers: tuple[str, ...]) -> None:
        view = waiting[name]
        while True:
            try:
                with silence_traces():
                    self._add_view(view)
            except InvalidInput as error:
                missing = _find_missing_name(error)
                if missing in (*readers, name):
                    circle = " reads ".join(map(repr, (*readers, name, missing)))
                    why = f"these views read each other in a circle: {circle}"
                    self._errors.add(InvalidInput(where=view.where, why=why), name)
                elif missing in waiting:
                    self._add_after_inputs(missing, waiting, (*readers, name))
                    continue
                elif self._errors.is_broken(missing):
                    self._errors.mark_broken(name)
                else:
                    self._errors.add(error, name)
            del waiting[name]
            return

    def _add_inputs(self) -> None:
        """Add the tables that functions of a project loaded."""
        names = {name.lower() for name in (*self.tables, *self.views)}
        for table, _ in self._inputs.loaded.values() if self._inputs is not None else ():
            if table.name.lower() in names:
                why = f"spark.read here creates the table {table.name!r}, which is already declared; rename one of them"
                raise InvalidInput(where=table.where, why=why)
            self._add_input(table)

    def _add_input(self, table: TableStatement) -> None:
        table = self._spell(table)
        self.statements.append(table)
        self.table_statements.append(table)
        self._add_table(table)

    def _add_table(self, statement: TableStatement) -> None:
        where = f"{statement.where}, table {statement.name!r}"
        check_properties(statement.properties, is_view=False, where=where)
        self.sinks[statement.name] = read_sinks(statement.properties, where)
        if any(column.declared_type for column in statement.columns):
            self._refuse_char_settings(where)
        with self._locate_errors(where):
            self.catalog.add_table(statement)
        self.compared_types[statement.name] = self.catalog.list_compared_types(statement.name)
        columns = tuple(Attribute(-1, column.name, column.type, column.nullable) for column in statement.columns)
        for column in columns:
            check_type(column, where)
        self.tables[statement.name] = columns
        key = {name.lower() for name in statement.key}
        refused = [why for each in columns if each.name.lower() in key and (why := self._refuse_as_key(each))]
        if refused:
            self.refused_keys[statement.name] = "; ".join(refused)

    def _refuse_char_settings(self, where: str) -> None:
        """Refuse settings that give CHAR and VARCHAR another meaning than `evertide.rows.char_types` has."""
        for name in _CHAR_SETTINGS:
            if self.catalog.session.conf.get(name) == "true":
                why = f"CHAR and VARCHAR are not supported while {name} is true; set it to false, or use STRING"
                raise InvalidInput(where=where, why=why)

    def _refuse_as_key(self, column: Attribute) -> str:
        """Why the column cannot be in a primary key; empty if its equal values have equal bytes."""
        kind = self.catalog.session._jsparkSession.parseDataType(column.type)
        if self.catalyst.is_collated(kind):
            remedy = "declare it with STRING, and write COLLATE in the queries that need it"
        elif contains_type(column.type, "map"):
            remedy = "declare it with ARRAY or STRUCT instead of MAP, or leave it out of the key"
        elif contains_type(column.type, "variant"):
            remedy = "declare it with the type of its values, or leave it out of the key"
        else:
            return ""
        why = f"column {column.name!r} is {kind.sql()}, of which equal values can have different bytes"
        return f"{why}, and keys are compared by bytes; {remedy}"

    def _add_view(self, statement: _View) -> None:
        where = f"{statement.where}, view {statement.name!r}"
        check_properties(statement.properties, is_view=True, where=where)
        self.sinks[statement.name] = read_sinks(statement.properties, where)
        if self.sinks[statement.name] and not statement.is_materialized:
            why = "'evertide.sinks' needs a materialized view, since other views are not stored"
            raise InvalidInput(where=where, why=why)
        with self._locate_errors(where):
            query: Query = self.catalog.add_view(statement)
            loaded = self._inputs.take(query.frame) if self._inputs and statement.is_materialized else None
            if loaded is not None:
                self._add_input(replace(loaded, name=statement.name, properties=dict(statement.properties)))
                return
            refuse_unmaintainable(query, self.catalog)
            if not statement.is_materialized:
                return
            plan = self._algebra.plan(query)
        for attribute in plan.output:
            check_type(attribute, where)
        names = [attribute.name.lower() for attribute in plan.output]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(where=where, why=f"two columns are named {name!r}; rename one with AS")
        declared = read_key(statement.properties, [attribute.name for attribute in plan.output], where)
        self.keys[statement.name] = declared or derive_key(plan)
        self.views[statement.name] = plan
        self.compared_types[statement.name] = self.catalog.list_compared_types(statement.name)
        self.reads[statement.name] = query.reads

    @contextmanager
    def _locate_errors(self, where: str) -> Iterator[None]:
        """Add the place to errors that Spark raises after parsing: unusable names, disabled types."""
        try:
            yield
        except AnalysisException as error:
            raise InvalidInput(where=where, why=self.catalog.explain(error)) from error

    def find_needed(self, views: Iterable[str]) -> set[str]:
        """These views and all views that they read, directly or indirectly."""
        found: set[str] = set()
        waiting = list(views)
        while waiting:
            name = waiting.pop()
            if name in self.views and name not in found:
                found.add(name)
                waiting += self.reads[name]
        return found


def _find_missing_name(error: InvalidInput) -> str:
    """The name that Spark does not know, in lower case; empty if the error has another cause."""
    cause = error.__cause__
    if not isinstance(cause, PySparkException) or cause.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return str((cause.getMessageParameters() or {}).get("relationName", "")).strip("`").lower()
