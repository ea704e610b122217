"""The engine of pipelines: circuits that run on Spark (`evertide.flow`)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec
import pyarrow as pa

from evertide.flow import Circuit, CircuitState
from evertide.flow.blame import FailedSteps
from evertide.flow.explanation.explain import explain
from evertide.flow.explanation.explanation import Explanations
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.state_part import PartEntry
from evertide.flow.wide.step import WideInput, WideResult
from evertide.pipeline.engine import Cohort, DeclaredTable, DeclaredView, StateStore, drain
from evertide.plan.algebra.nodes import Attribute
from evertide.plan.algebra.plan_columns import make_arrow_schema
from evertide.plan.catalyst.driver import BACKFILL_POOL, read_activity, use_pool
from evertide.plan.catalyst.jobs import Jobs
from evertide.plan.catalyst.result_settings import read_result_settings
from evertide.plan.catalyst.session import Session
from evertide.plan.program.fingerprint import Fingerprints
from evertide.plan.program.program import Program
from evertide.plan.program.project import Project
from evertide.plan.program.view_function import ViewFunction
from evertide.plan.script.statements import ViewStatement
from evertide.rows.char_types import add_char_types
from evertide.threads.stopping import IsStopping, never_stopping


class SparkCohort:
    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.circuit.program.catalyst)

    def describe_table(self, name: str) -> tuple[pa.Schema, pa.Schema]:
        return self.circuit.describe_table(name)

    def compute_wide(self, given: WideInput) -> WideResult:
        return self.circuit.compute_wide(given)

    @property
    def views(self) -> Mapping[str, pa.Schema]:
        return self.circuit.views

    def step(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        return self.circuit.step(deltas)

    def drop(self, views: Collection[str]) -> None:
        self.circuit.drop(views)

    def save(self) -> tuple[bytes, list[PartEntry]]:
        state = self.circuit.save()
        return msgspec.msgpack.encode(state), [
            part for one in state.arrangements.values() for part in one.list_entries()
        ]

    def parts(self) -> list[PartEntry]:
        return [part for kept in self.circuit.arrangements.values() for part in kept.parts()]

    def arrangements(self) -> Iterable[Arrangement]:
        return [*self.circuit.arrangements.values()]

    def drain_released(self) -> list[str]:
        return [key for kept in self.circuit.arrangements.values() for key in drain(kept.released)]

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        return self.circuit.maintain(is_stopping)


class SparkEngine:
    def __init__(
        self, session: Session, script: str | Project, path: str = "SQL", functions: Sequence[ViewFunction] = ()
    ) -> None:
        """Closing the engine closes the session, too, if the session was started for it."""
        self._session = session
        self._script = (script, path, functions)
        self._failed_steps = FailedSteps()
        self.spark = session.spark
        self._declare({})

    def activity(self) -> object:
        return read_activity(self.spark.sparkContext)

    def spell(self, names: Mapping[str, str]) -> None:
        if any(names.get(name.lower(), name) != name for name in (*self.tables, *self.views)):
            self._declare(names)

    def _declare(self, spelling: Mapping[str, str]) -> None:
        script, path, functions = self._script
        self.program = Program(self.spark, script, path, functions=functions, spelling=spelling)
        prints = Fingerprints(self.program)
        self.fingerprint = prints.pipeline
        self.tables = {
            statement.name: DeclaredTable(
                name=statement.name,
                schema=add_char_types(
                    _name_columns(self.program.tables[statement.name]),
                    {column.name: column.declared_type for column in statement.columns},
                    self.program.compared_types[statement.name],
                ),
                key=tuple(_spell_key(statement.key, self.program.tables[statement.name])),
                connector=statement.connector,
                options=statement.options,
                is_kept=statement.properties.get("evertide.keep", "all") == "all",
                where=statement.where,
                defaults={column.name: column.default for column in statement.columns if column.default},
                sinks=self.program.sinks[statement.name],
                comment=statement.comment,
                refused_key=self.program.refused_keys.get(statement.name, ""),
            )
            for statement in self.program.table_statements
        }
        texts = {one.name: one.query for one in self.program.statements if isinstance(one, ViewStatement)}
        digests = _digest_queries(self.program)
        declared = (*self.program.statements, *self.program.functions)
        comments = {one.name: one.comment for one in declared if isinstance(one, ViewStatement | ViewFunction)}
        self.views = {
            name: DeclaredView(
                name,
                add_char_types(_name_columns(plan.output), {}, self.program.compared_types[name]),
                prints.views[name],
                self.program.reads[name],
                self.program.sinks[name],
                self.program.keys[name],
                comment=comments.get(name, ""),
                sql=texts.get(name, ""),
                query_digest=digests.get(name, ""),
            )
            for name, plan in self.program.views.items()
        }

    @property
    def plain_views(self) -> list[str]:
        declared = (*self.program.statements, *self.program.functions)
        return [
            one.name for one in declared if isinstance(one, ViewStatement | ViewFunction) and not one.is_materialized
        ]

    def cohort(self, views: Collection[str], store: StateStore, state: bytes | None) -> SparkCohort:
        saved = None if state is None else msgspec.msgpack.decode(state, type=CircuitState)
        return SparkCohort(
            Circuit(
                self._session.spark,
                "",
                program=self.program,
                only=views,
                blob=store.blob,
                cache=store.cache,
                new_name=store.new_name,
                state=saved,
                failed_steps=self._failed_steps,
            )
        )

    def share_cores(self) -> AbstractContextManager[None]:
        return use_pool(self.spark.sparkContext, BACKFILL_POOL)

    def explain(self, cohorts: Iterable[Cohort]) -> Explanations:
        return Explanations(explain(cohort.circuit) for cohort in cohorts if isinstance(cohort, SparkCohort))

    def results(self) -> dict[str, str]:
        """The settings that affect results, including those of a project, and Spark's version."""
        return read_result_settings(self.program.catalog.session)

    def close(self) -> None:
        self._session.close()


def _digest_queries(program: Program) -> dict[str, str]:
    """By materialized view in SQL, the digest of its query's text and of those under it (`DeclaredView`).

    Views that are not materialized, which any query may read, are in each digest.
    """
    views = [one for one in program.statements if isinstance(one, ViewStatement)]
    others = sorted((one.name, *one.columns, one.query) for one in views if not one.is_materialized)
    own = {one.name: one.query for one in views if one.is_materialized}
    found: dict[str, str] = {}
    for name in program.views:  # after the views that it reads
        under = [found.get(read, "") for read in program.reads[name] if read in program.views]
        if name in own and all(under):
            text = msgspec.json.encode((own[name], others, under))
            found[name] = hashlib.blake2b(text, digest_size=16).hexdigest()
    return found


def _name_columns(columns: Sequence[Attribute]) -> pa.Schema:
    positional = make_arrow_schema(columns)
    return pa.schema([field.with_name(column.name) for field, column in zip(positional, columns, strict=True)])


def _spell_key(key: Sequence[str], columns: Sequence[Attribute]) -> list[str]:
    """The key's columns, spelled as the table spells them."""
    names = {column.name.lower(): column.name for column in columns}
    return [names[column.lower()] for column in key]
