"""`/v1/collections`, `/v1/tables`, `/v1/views`: the collections; `/v1/graph`: how they are connected.

`/v1/views/{name}/explain`: the operators of a view, how each is maintained, and its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import NotAllowedNow
from evertide.flow.explanation.diagrams import render_dot, render_mermaid
from evertide.flow.explanation.explanation import Explanation
from evertide.json_values import to_json_value
from evertide.media import DOT, JSON, MERMAID, TEXT
from evertide.pipeline.definition import TableRecord, ViewRecord
from evertide.pipeline.engine import DeclaredTable, DeclaredView
from evertide.pipeline.input.pushes import PUSH
from evertide.pipeline.names import ERRORS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.table_deltas import ERRORS_SCHEMA
from evertide.pipeline.status.status import SourceStatus, Status
from evertide.problem import ComponentState
from evertide.server.endpoints.formats import Column, list_columns
from evertide.server.endpoints.history import History
from evertide.server.http.answers import answer_json, answer_struct, choose_media, make_not_found
from evertide.server.http.endpoint import BYTES, Endpoint, Handler, NoQuery
from evertide.suggestions import list_names


class SourceSummary(msgspec.Struct, frozen=True):
    """The source that feeds a table."""

    name: str
    connector: str
    state: str
    position: str
    lag: Any
    """As far as the source knows it: `bytes`, `rows`, `files`, `seconds`; otherwise null."""


class SinkSummary(msgspec.Struct, frozen=True):
    """A sink that a collection is written to."""

    name: str
    connector: str
    state: str
    last: int | None
    behind: int


class Collection(msgspec.Struct, frozen=True):
    """A table or a view."""

    name: str
    kind: str
    columns: list[Column]
    key: list[str] | None
    comment: str
    sql: str | None
    state: str
    why: str
    upper: int
    since: int
    rows: int | None
    """Exact; null if the content is not stored, or not computed yet."""
    bytes: int
    parts: int
    reads: list[str]
    source: SourceSummary | None
    sinks: list[SinkSummary]
    is_kept: bool


class CollectionsAnswer(msgspec.Struct, frozen=True):
    time: int
    collections: list[Collection]


class Node(msgspec.Struct, frozen=True):
    """A source, table, view or sink."""

    id: str
    name: str
    kind: str
    state: str
    upper: int | None
    lag_s: float | None
    rows: int | None
    bytes: int | None
    rows_per_s: float


class Edge(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    from_: str
    to: str


class Graph(msgspec.Struct, frozen=True):
    time: int
    nodes: list[Node]
    edges: list[Edge]


class CollectionEndpoints:
    def __init__(self, pipeline: Pipeline, history: History) -> None:
        self._pipeline = pipeline
        self._history = history

    def endpoints(self) -> Iterator[Endpoint]:
        area = "collections"
        for name, what in (("collections", "tables and views"), ("tables", "tables"), ("views", "views")):
            kinds = ("table", "view") if name == "collections" else (name.removesuffix("s"),)
            handler = self._make_list_handler(kinds)
            yield Endpoint("GET", f"/v1/{name}", area, f"All {what}.", handler, {JSON: CollectionsAnswer})
        for kind in ("table", "view"):
            path, handler = f"/v1/{kind}s/{{name}}", self._make_handler(kind)
            yield Endpoint("GET", path, area, f"One {kind}.", handler, {JSON: Collection}, refusals=(400, 404))
        graph = "Sources, tables, views and sinks, and the edges between them."
        yield Endpoint("GET", "/v1/graph", area, graph, self._answer_graph, {JSON: Graph})

    def _make_list_handler(self, kinds: tuple[str, ...]) -> Handler:
        async def list_all(_: Request, __: NoQuery) -> Response:
            return await run_in_threadpool(self._answer_list, kinds)

        return list_all

    def _make_handler(self, kind: str) -> Handler:
        async def find(request: Request, _: NoQuery) -> Response:
            return await run_in_threadpool(self._find_one, request.path_params["name"], kind)

        return find

    async def _answer_graph(self, _: Request, __: NoQuery) -> Response:
        return await run_in_threadpool(self._draw_graph)

    def _answer_list(self, kinds: tuple[str, ...]) -> Response:
        inventory = Inventory(self._pipeline)
        found = [one for one in inventory.all() if one.kind in kinds]
        return answer_struct(CollectionsAnswer(inventory.status.time, found))

    def _find_one(self, name: str, kind: str) -> Response:
        declared = find_declared_name(self._pipeline, name, kind)
        return answer_struct(next(one for one in Inventory(self._pipeline).all() if one.name == declared))

    def _draw_graph(self) -> Response:
        inventory = Inventory(self._pipeline)
        self._history.follow()
        return answer_struct(Graph(inventory.status.time, [*inventory.nodes(self._history)], [*inventory.edges()]))


def find_declared_name(pipeline: Pipeline, name: str, kind: str) -> str:
    """The name in the case of its declaration; raises 404 if the pipeline has no such table or view."""
    definition = pipeline.definition
    tables = [*(one for one, table in definition.tables.items() if table.is_declared), ERRORS]
    known = tables if kind == "table" else [*definition.views]
    declared = next((one for one in known if one.lower() == name.lower()), None)
    if declared is None:
        why = pipeline.collections.members().explain_plain(name)
        why = why or f"the pipeline has no such {kind}{list_names(name, sorted(known), 'it has')}"
        raise make_not_found(f"{kind} {name!r}", why)
    return declared


class Inventory:
    """All sources, collections and sinks, from one read of the status."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.status: Status = pipeline.status()
        self._members = pipeline.collections.members()
        self._states = {one.name: one for one in self.status.collections}
        self._sources = {table: source for source in self.status.sources for table in source.tables}

    def all(self) -> Iterator[Collection]:
        engine, definition = self._pipeline.engine, self._members.definition
        for name, table in definition.tables.items():
            if table.is_declared:
                yield self._describe_table(name, table, engine.tables.get(name))
        for name, view in definition.views.items():
            yield self._describe_view(name, view, engine.views.get(name))
        yield self._describe_stored(
            ERRORS, "table", definition.errors, ERRORS_SCHEMA, comment="Rows that did not fit their table."
        )

    def _describe_table(self, name: str, record: TableRecord, declared: DeclaredTable | None) -> Collection:
        return self._describe_stored(
            name,
            "table",
            record.shard,
            record.read_schema(),
            key=[*record.key] or None,
            comment=declared.comment if declared else "",
            source=self._describe_source(name, record.connector),
        )

    def _describe_view(self, name: str, record: ViewRecord, declared: DeclaredView | None) -> Collection:
        return self._describe_stored(
            name,
            "view",
            record.shard,
            record.read_schema(),
            key=[*record.key] if record.key is not msgspec.UNSET else None,
            comment=declared.comment if declared else "",
            sql=(declared.sql or None) if declared else None,
            reads=[*record.reads],
        )

    def _describe_stored(self, name: str, kind: str, shard: str, schema: Any, **more: Any) -> Collection:
        known = self._states.get(name)
        state = self._members.shard(shard).log.read().state if shard else None
        parts = state.parts if state is not None else ()
        facts = {"key": None, "comment": "", "sql": None, "reads": [], "source": None, **more}
        return Collection(
            name=name,
            kind=kind,
            columns=list_columns(schema),
            state=known.state if known is not None else ComponentState.RUNNING,
            why=known.why if known is not None else "",
            upper=state.upper if state is not None else self.status.time + 1 if kind == "table" else 0,
            since=state.since if state is not None else 0,
            rows=sum(part.count for part in parts) if state is not None else None,
            bytes=sum(part.bytes for part in parts),
            parts=len(parts),
            sinks=[
                SinkSummary(sink.name, sink.connector, sink.state, sink.last, sink.behind)
                for sink in self.status.sinks
                if sink.collection == name
            ],
            is_kept=bool(shard) or kind == "view",
            **facts,
        )

    def _describe_source(self, table: str, connector: str) -> SourceSummary | None:
        source = self._sources.get(table)
        if source is None:
            return None
        return SourceSummary(source.name, connector or PUSH, source.state, source.position, to_json_value(source.lag))

    def nodes(self, history: History) -> Iterator[Node]:
        sources, shards = history.rates()
        definition = self._members.definition
        for source in self.status.sources:
            rate = round(sources.get(source.name, 0.0), 3)
            yield Node(
                f"source:{source.name}",
                source.name,
                "source",
                source.state,
                None,
                _read_lag_s(source),
                None,
                None,
                rate,
            )
        rates: dict[str, float] = {}
        for one in self.all():
            if one.name == ERRORS:
                continue
            record = definition.tables.get(one.name) or definition.views[one.name]
            rates[one.name] = round(shards.get(record.shard, 0.0), 3)
            lag_s = _read_lag_s(self._sources[one.name]) if one.name in self._sources else None
            facts = (one.name, one.kind, one.state, one.upper, lag_s, one.rows, one.bytes, rates[one.name])
            yield Node(f"{one.kind}:{one.name}", *facts)
        for sink in self.status.sinks:
            upper = self.status.time + 1 - sink.behind
            rate = rates.get(sink.collection, 0.0)
            yield Node(f"sink:{sink.name}", sink.name, "sink", sink.state, upper, None, None, None, rate)

    def edges(self) -> Iterator[Edge]:
        definition = self._members.definition
        kinds = {**dict.fromkeys(definition.tables, "table"), **dict.fromkeys(definition.views, "view")}
        for source in self.status.sources:
            yield from (Edge(f"source:{source.name}", f"table:{table}") for table in source.tables)
        for name, view in definition.views.items():
            yield from (Edge(f"{kinds[read]}:{read}", f"view:{name}") for read in view.reads if read in kinds)
        for sink in self.status.sinks:
            if sink.collection in kinds:
                yield Edge(f"{kinds[sink.collection]}:{sink.collection}", f"sink:{sink.name}")


def _read_lag_s(source: SourceStatus) -> float | None:
    return source.lag.seconds if source.lag is not None else None


class ExplainQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: (
        Annotated[str, msgspec.Meta(description="json, text, mermaid or dot; takes precedence over the Accept header.")]
        | None
    ) = None


class ExplainAnswer(msgspec.Struct, frozen=True):
    """The output of `evertide explain --json`, with the current state."""

    views: list[Any]
    arrangements: list[Any]


class ExplainEndpoints:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def endpoints(self) -> Iterator[Endpoint]:
        answers = {JSON: ExplainAnswer, TEXT: BYTES, MERMAID: BYTES, DOT: BYTES}
        yield Endpoint(
            "GET",
            "/v1/views/{name}/explain",
            "collections",
            "How a view is maintained.",
            self._explain,
            answers,
            ExplainQuery,
            refusals=(400, 404, 406, 409),
        )

    async def _explain(self, request: Request, query: ExplainQuery) -> Response:
        media = choose_media(request, query.format, (JSON, TEXT, MERMAID, DOT))
        explanation = await run_in_threadpool(self._explain_view, request.path_params["name"])
        if media == JSON:
            return answer_json(explanation.to_dict())
        render = {MERMAID: render_mermaid, DOT: render_dot}.get(media, Explanation.text)
        return Response(render(explanation), media_type=media)

    def _explain_view(self, name: str) -> Explanation:
        view = find_declared_name(self._pipeline, name, "view")
        explanations: list[Explanation] = self._pipeline.explain()
        for explanation in explanations:
            if view in explanation.names:
                return explanation.select_view(view)
        why = "the view is not maintained at the moment; GET /v1/status has the reason"
        raise NotAllowedNow(where=f"view {view!r}", why=why)
