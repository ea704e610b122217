"""Reads the files of a project: the statements of its SQL, and the declarations of its Python.

SQL is parsed like any script. Python files are run, as `spark-pipelines` does, with `spark` in their globals and a
registry behind `pyspark.pipelines` that only records declarations:

    @dp.materialized_view, @dp.table, @dp.temporary_view    a view of what the function returns
    dp.create_streaming_table, @dp.append_flow              a table with the rows of its flows
    dp.create_auto_cdc_flow                                 as AUTO CDC in SQL

1. Features without a counterpart in Evertide (sinks, partitions, formats, settings of a single flow, SCD type 2) are
   refused with file, line, and what to do instead.
2. A function is called when the tables that it reads are known (`evertide.plan.program.program`). Data that it loads
   becomes a table (`evertide.plan.program.project_inputs`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import pipelines
from pyspark.errors import AnalysisException, PySparkException
from pyspark.pipelines import api
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, Table, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation, get_caller_source_code_location
from pyspark.sql import Column, DataFrame, SparkSession

from evertide.errors import InvalidInput
from evertide.plan.catalyst.failure import read_first_line
from evertide.plan.program.flows import AppendFlow
from evertide.plan.program.project import Project, ProjectFile
from evertide.plan.program.project_inputs import ProjectSession, parse_columns
from evertide.plan.program.view_function import ViewFunction, activate
from evertide.plan.script.statements import FlowStatement, Statement, TableStatement, check_names, parse_script


@dataclass(frozen=True)
class ProjectView:
    """A decorated function. It is called once, when all tables and views that it reads are known."""

    name: str
    function: ViewFunction
    session: ProjectSession
    is_materialized: bool
    properties: Mapping[str, str]
    comment: str
    where: str

    def build_frame(self, _session: SparkSession) -> DataFrame:
        """Call the function with the project's session, in which `spark.read` creates tables."""
        return self.function.build_frame(self.session)


@dataclass
class Declarations:
    statements: list[Statement | AppendFlow] = field(default_factory=list)
    views: list[ProjectView] = field(default_factory=list)


def apply_configuration(session: SparkSession, project: Project, ours: Iterable[str]) -> list[str]:
    """Apply the settings of the spec. Returns the names of those that Evertide sets itself."""
    for name, value in project.configuration.items():
        if name in ours:
            continue
        try:
            session.conf.set(name, value)
        except AnalysisException as error:
            why = f"the setting {name!r} has an effect only when Spark starts; set it in spark-defaults.conf"
            raise InvalidInput(where=project.where, why=why) from error
    return sorted(set(ours) & project.configuration.keys())


def read_files(project: Project, session: ProjectSession) -> Declarations:
    """The declarations of all files; their order has no meaning."""
    declared = Declarations()
    for file in project.sql:
        declared.statements.extend(parse_script(session, file.text, str(file.path)))
    registry = _Registry(declared, session)
    with (
        _change_directory(project.root),
        graph_element_registration_context(registry),
        _replace_auto_cdc(registry),
        activate(session),
    ):
        for file in project.python:
            _run_file(file, session)
    registry.finish()
    check_names(each for each in declared.statements if not isinstance(each, AppendFlow))
    return declared


def _run_file(file: ProjectFile, session: ProjectSession) -> None:
    session.begin("", str(file.path))
    place = importlib.util.spec_from_file_location(file.path.stem, str(file.place))
    if place is None or place.loader is None:
        raise InvalidInput(where=str(file.path), why="the file is not a Python module")
    module = importlib.util.module_from_spec(place)
    module.__dict__["spark"] = session
    try:
        place.loader.exec_module(module)
    except InvalidInput as error:
        if error.where != str(file.path):
            raise
        raise InvalidInput(where=_find_line(file, error), why=error.why) from error
    except Exception as error:  # a user's module may raise anything
        raise InvalidInput(where=_find_line(file, error), why=_describe(error)) from error


def _find_line(file: ProjectFile, error: BaseException) -> str:
    """The last line of the file in the error's traceback."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{file.path}:{error.lineno}"
    own = str(file.place)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == own]
    return f"{file.path}:{lines[-1]}" if lines else str(file.path)


def _describe(error: BaseException) -> str:
    first = read_first_line(error)
    if isinstance(error, PySparkException):
        return first or type(error).__name__
    return f"the file failed: {type(error).__name__}: {first}"


class _Registry(GraphElementRegistry):  # type: ignore[misc]  # pyspark's classes are Any here
    """Records declarations; `finish` combines outputs and their flows, since either may come first."""

    def __init__(self, declared: Declarations, session: ProjectSession) -> None:
        self._declared = declared
        self._session = session
        self._outputs: dict[str, Output] = {}
        self._flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        where = _describe_place(output.source_code_location)
        _check_output(output, where)
        before = self._outputs.get(output.name.lower())
        if before is not None:
            why = f"{output.name!r} is already declared, at {_describe_place(before.source_code_location)}"
            raise InvalidInput(where=where, why=why)
        self._outputs[output.name.lower()] = output

    def register_flow(self, flow: Flow) -> None:
        where = _describe_place(flow.source_code_location)
        if flow.spark_conf:
            why = f"spark_conf= of {flow.name!r} is not supported; put settings into the spec, for the whole pipeline"
            raise InvalidInput(where=where, why=why)
        self._flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise InvalidInput(
            where=_describe_place(flow.source_code_location),
            why=f"declare the AUTO CDC flow into {flow.target!r} with dp.create_auto_cdc_flow",
        )

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        self._declared.statements.extend(parse_script(self._session, sql_text, str(file_path)))

    def add_flow(self, flow: FlowStatement) -> None:
        self._declared.statements.append(flow)

    def finish(self) -> None:
        for flow in self._flows:
            output = self._outputs.get(flow.target.lower())
            if isinstance(output, MaterializedView | TemporaryView):
                self._declared.views.append(self._make_view(output, flow))
            else:
                self._declared.statements.append(self._make_append_flow(flow))
        for output in self._outputs.values():
            if isinstance(output, StreamingTable):
                self._declared.statements.append(_make_streaming_table(output))

    def _make_view(self, output: MaterializedView | TemporaryView, flow: Flow) -> ProjectView:
        is_stored = isinstance(output, MaterializedView)
        where = _describe_place(output.source_code_location)
        if is_stored and output.schema is not None:
            why = f"schema= of {output.name!r} is not supported; cast the columns in the query"
            raise InvalidInput(where=where, why=why)
        properties = dict(output.table_properties) if is_stored else {}
        function = ViewFunction(output.name, self._make_reader(output.name, flow, where))
        return ProjectView(output.name, function, self._session, is_stored, properties, output.comment or "", where)

    def _make_append_flow(self, flow: Flow) -> AppendFlow:
        where = _describe_place(flow.source_code_location)
        function = ViewFunction(flow.name, self._make_reader(flow.name, flow, where))
        return AppendFlow(flow.name, flow.target, lambda _: function.build_frame(self._session), where)

    def _make_reader(self, name: str, flow: Flow, where: str) -> Any:
        def read() -> DataFrame:
            self._session.begin(name, where)
            return flow.func()

        read.__wrapped__ = flow.func  # type: ignore[attr-defined]  # messages name its line
        return read


def _check_output(output: Output, where: str) -> None:
    if isinstance(output, Sink):
        why = f"the sink {output.name!r} is not supported; give the view the property 'evertide.sinks' (docs/sinks.md)"
        raise InvalidInput(where=where, why=why)
    if "." in output.name:
        raise InvalidInput(
            where=where, why=f"the name {output.name!r} has a catalog or schema; names in a pipeline have none"
        )
    if isinstance(output, Table):
        given = {"partition_cols": output.partition_cols, "cluster_by": output.cluster_by, "format": output.format}
        for name, value in given.items():
            if value:
                why = f"{name}= of {output.name!r} is not supported, since Evertide stores tables itself; leave it out"
                raise InvalidInput(where=where, why=why)


def _make_streaming_table(output: StreamingTable) -> TableStatement:
    where = _describe_place(output.source_code_location)
    return TableStatement(
        name=output.name,
        columns=() if output.schema is None else parse_columns(output.schema, where),
        key=(),
        connector="",
        options={},
        properties=dict(output.table_properties),
        comment=output.comment or "",
        is_streaming=True,
        where=where,
    )


@contextmanager
def _replace_auto_cdc(registry: _Registry) -> Iterator[None]:
    """Replace Spark's function, which needs a Spark Connect client, by one that takes SQL texts."""

    def create_auto_cdc_flow(  # noqa: PLR0917 - Spark's parameters
        target: str,
        source: str,
        keys: Sequence[str | Column],
        sequence_by: str | Column,
        apply_as_deletes: str | Column | None = None,
        column_list: Sequence[str | Column] | None = None,
        except_column_list: Sequence[str | Column] | None = None,
        stored_as_scd_type: int | str | None = None,
        name: str | None = None,
        **others: Any,
    ) -> None:
        where = _describe_place(get_caller_source_code_location(stacklevel=1))
        given = {
            "stored_as_scd_type=2": str(stored_as_scd_type or 1) != "1",
            "column_list=": bool(column_list),
            **{f"{each}=": bool(value) for each, value in others.items()},
        }
        for each, is_given in given.items():
            if is_given:
                why = f"{each} is not supported; a table has the current row of each key, without excepted columns"
                raise InvalidInput(where=where, why=why)
        registry.add_flow(
            FlowStatement(
                name=name or target,
                target=target,
                source=source,
                keys=tuple(map(_to_sql, keys)),
                sequence_by=_to_sql(sequence_by),
                delete_when="" if apply_as_deletes is None else _to_sql(apply_as_deletes),
                without=tuple(_to_sql(each).strip("`") for each in except_column_list or ()),
                where=where,
            )
        )

    before = api.create_auto_cdc_flow
    try:
        for module in (api, pipelines):
            module.create_auto_cdc_flow = create_auto_cdc_flow
        yield
    finally:
        for module in (api, pipelines):
            module.create_auto_cdc_flow = before


def _to_sql(column: str | Column) -> str:
    if isinstance(column, str):
        return column
    text: str = column._jc.node().sql()  # a classic column
    return text


def _describe_place(location: SourceCodeLocation) -> str:
    return f"{location.filename}:{location.line_number}"


@contextmanager
def _change_directory(root: Path) -> Iterator[None]:
    """Run files in the project's directory, from which they may import modules."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(root)
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
