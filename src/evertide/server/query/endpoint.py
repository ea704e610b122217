"""`POST /v1/query`: a SELECT over all collections at one time, answered by worker processes (`Workers`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide.media import FACTS_HEADER, JSON
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.pipeline.spark_engine import SparkEngine
from evertide.runtime import Runtime
from evertide.server.bodies.bodies import read_body, read_media_type
from evertide.server.endpoints.formats import ROW_FORMATS, Column
from evertide.server.endpoints.rows import Format
from evertide.server.http.answers import answer_stream, choose_media, make_content_headers
from evertide.server.http.endpoint import BYTES, Endpoint, parse_body
from evertide.server.query.workers import EncodedAnswer, Workers

_SQL_MAX = 256 * 1024
_BLOCK_BYTES = 256 * 1024
_JSON_ROWS = 10_000
"""Default limit for answers as JSON, which people read; programs use other formats."""


class QueryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: Annotated[str, msgspec.Meta(min_length=1, description="One SELECT over tables and views.")]
    as_of: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    engine: EngineChoice = EngineChoice.auto
    limit: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    parameters: Annotated[list[Any], msgspec.Meta(description="The values of the ?, in order.")] = []


class QueryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Format | None = None


class QueryAnswer(msgspec.Struct, frozen=True):
    time: int
    is_truncated: bool
    engine: str
    took_ms: float
    stale: list[str]
    """A sentence for each view whose content stands at an earlier transaction than the other collections."""
    columns: list[Column]
    rows: list[list[Any]]


class QueryEndpoints:
    def __init__(self, pipeline: Pipeline, runtime: Runtime) -> None:
        self._workers = Workers(
            pipeline.storage.address,
            partial(_results, pipeline),
            settings=pipeline.settings,
            runtime=runtime,
            has_spark=isinstance(pipeline.engine, SparkEngine),
        )
        self._by_duckdb = anyio.CapacityLimiter(pipeline.settings.queries_max)
        self._by_spark = anyio.CapacityLimiter(1)

    def endpoints(self) -> Iterator[Endpoint]:
        yield Endpoint(
            "POST",
            "/v1/query",
            "query",
            "Run a SELECT over all collections at one time.",
            self._query,
            {media: QueryAnswer if media == JSON else BYTES for media in ROW_FORMATS},
            QueryQuery,
            bodies={JSON: QueryBody},
            refusals=(400, 406, 410, 413, 415, 422, 503),
        )

    async def _query(self, request: Request, query: QueryQuery) -> Response:
        read_media_type(request, JSON)
        media = choose_media(request, query.format, ROW_FORMATS)
        body = parse_body(await read_body(request, _SQL_MAX), QueryBody)
        limit = _JSON_ROWS if body.limit is None and media == JSON else body.limit
        question = Question(body.sql, body.as_of, body.engine, limit, body.parameters, media)
        answer = await self._ask(question)
        facts = {
            "time": answer.time,
            "is_truncated": answer.is_truncated,
            "engine": answer.engine,
            "took_ms": answer.took_ms,
        }
        text = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in facts.items())
        headers = {**make_content_headers(answer.time, answer.stale), FACTS_HEADER: text.replace('"', "")}
        head = msgspec.json.encode({**facts, "stale": answer.stale}) if media == JSON else b""
        return await answer_stream(_slice_body(head, answer.body), media, headers)

    def close(self) -> None:
        self._workers.close()

    async def _ask(self, question: Question) -> EncodedAnswer:
        """The engines have separate limiters, so queries that wait for Spark do not block those for DuckDB."""
        found = await anyio.to_thread.run_sync(self._workers.ask_duckdb, question, limiter=self._by_duckdb)
        if found is not None:
            return found
        return await anyio.to_thread.run_sync(self._workers.ask_spark, question, limiter=self._by_spark)


def _slice_body(head: bytes, body: bytearray) -> Iterator[bytes]:
    """In blocks, so that the connection buffers only what the client reads. `head` is a JSON object that is put before
    the fields of the body."""
    at = 0
    if head:
        yield head.removesuffix(b"}") + b","
        at = len(b"{")
    for start in range(at, len(body), _BLOCK_BYTES):
        yield bytes(body[start : start + _BLOCK_BYTES])


def _results(pipeline: Pipeline) -> Mapping[str, str]:
    return pipeline.engine.results() if isinstance(pipeline.engine, SparkEngine) else {}
