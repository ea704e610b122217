"""What happened: `/v1/journal`, the last of `/v1/transactions`, and what is wrong: `/v1/errors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.journal.journal import Journal
from evertide.json_values import to_json_value
from evertide.pipeline.names import ERRORS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status
from evertide.problem import Problem
from evertide.server.endpoints.content import content_of
from evertide.server.endpoints.history import History, Transaction
from evertide.server.http.answers import JSON, told
from evertide.server.http.endpoint import Endpoint
from evertide.sinks.json_rows import json_rows

__all__ = ["Journaling", "Page", "Trouble", "troubles"]

Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000, description="At most so many.")]


class Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    before: Annotated[int, msgspec.Meta(ge=0, le=2**62, description="Only those before this time.")] | None = None
    limit: Limit = 100


class ErrorsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100


class Transactions(msgspec.Struct, frozen=True):
    transactions: list[Transaction]


class Record(msgspec.Struct, frozen=True):
    """Which input a transaction holds."""

    time: int
    generation: int
    positions: dict[str, str]
    moved: list[str]
    fragments: int
    rows: int | None
    bytes: int
    committed: bool
    writer: str
    bound_at_s: float


class Records(msgspec.Struct, frozen=True):
    records: list[Record]


class Trouble(msgspec.Struct, frozen=True):
    """Something that is wrong now: with what, since when, why, and what to do."""

    of: str
    state: str
    error_code: str
    why: str
    remedy: str
    since_s: float
    wait_s: float | None = None


class Errors(msgspec.Struct, frozen=True):
    time: int
    problems: list[Trouble]
    errors: list[dict[str, Any]]
    """Rows that did not fit their table."""
    count: int
    is_truncated: bool


class Journaling:
    """The endpoints."""

    def __init__(self, pipeline: Pipeline, history: History) -> None:
        self._pipeline = pipeline
        self._history = history
        storage = pipeline.storage
        self._journal = Journal(storage.blob, storage.meta, runtime=history.runtime, settings=pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area = "journal"
        last = "The last transactions, the newest first."
        yield Endpoint("GET", "/v1/transactions", area, last, self._transactions, {JSON: Transactions}, Page)
        records = "Which input each transaction holds, the newest first."
        yield Endpoint("GET", "/v1/journal", area, records, self._records, {JSON: Records}, Page)
        wrong = "What is wrong now, and rows that did not fit their table."
        yield Endpoint("GET", "/v1/errors", area, wrong, self._errors, {JSON: Errors}, ErrorsQuery)

    async def _transactions(self, _: Request, query: Page) -> Response:
        found = await run_in_threadpool(self._history.transactions, query.before, query.limit)
        return told(Transactions(found))

    async def _records(self, _: Request, query: Page) -> Response:
        return await run_in_threadpool(self._described, query)

    def _described(self, query: Page) -> Response:
        upper = self._journal.upper
        last = (upper if query.before is None else min(query.before, upper)) - 1
        lines = self._journal.describe(max(0, last - query.limit + 1), last)
        return told(Records([msgspec.convert(to_json_value(line), Record) for line in reversed(lines)]))

    async def _errors(self, _: Request, query: ErrorsQuery) -> Response:
        return await run_in_threadpool(self._wrong, query.limit)

    def _wrong(self, limit: int) -> Response:
        view, shard = self._pipeline.view(ERRORS), self._pipeline.collections.members().collection(ERRORS)
        content = content_of(view, shard)
        found = [row for table in content.tables(limit) for row in json_rows(table)]
        count = sum(part.count for part in shard.log.read().state.parts)
        status = self._pipeline.status()
        return told(Errors(content.time, [*troubles(status)], found, count, is_truncated=count > len(found)))


def troubles(status: Status) -> Iterator[Trouble]:
    """Of the pipeline, its sources, its sinks and its views; each once."""
    told_of: set[str] = set()
    for source in status.sources:
        for problem in source.problems:
            told_of.add(problem.why)
            yield _trouble(f"source {source.name!r}", problem)
    for problem in status.problems:
        if problem.why not in told_of:
            yield _trouble("pipeline", problem)
    for sink in status.sinks:
        if sink.problem is not None:
            yield _trouble(f"sink {sink.name!r}", sink.problem)
    for one in status.collections:
        if one.state == "failed":
            remedy = "Correct the row; the view is tried again when a transaction touches it."
            yield Trouble(f"view {one.name!r}", one.state, "view_failed", one.why, remedy, 0.0)


def _trouble(of: str, problem: Problem) -> Trouble:
    return Trouble(of, problem.state, problem.error_code, problem.why, problem.remedy, problem.since_s, problem.wait_s)
