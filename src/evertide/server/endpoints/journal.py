"""`/v1/journal`, the last transactions (`/v1/transactions`), and current problems (`/v1/errors`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import ViewFailed
from evertide.journal.journal import Journal, TransactionSummary
from evertide.pipeline.names import ERRORS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status
from evertide.problem import ComponentState, Problem
from evertide.server.endpoints.content import select_content
from evertide.server.endpoints.history import History, Transaction
from evertide.server.http.answers import JSON, answer_struct
from evertide.server.http.endpoint import Endpoint
from evertide.sinks.json_rows import to_json_rows

Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000, description="The largest number of entries.")]


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    before: Annotated[int, msgspec.Meta(ge=0, le=2**62, description="Only entries before this time.")] | None = None
    limit: Limit = 100


class ErrorsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100


class Transactions(msgspec.Struct, frozen=True):
    transactions: list[Transaction]


class Records(msgspec.Struct, frozen=True):
    records: list[TransactionSummary]


class ReportedProblem(msgspec.Struct, frozen=True):
    """A current problem: of which object, since when, why, and what to do."""

    of: str
    state: str
    error_code: str
    why: str
    remedy: str
    since_s: float
    wait_s: float | None = None


class Errors(msgspec.Struct, frozen=True):
    time: int
    problems: list[ReportedProblem]
    errors: list[dict[str, Any]]
    """Rows that did not fit their table."""
    count: int
    is_truncated: bool


class JournalEndpoints:
    def __init__(self, pipeline: Pipeline, history: History) -> None:
        self._pipeline = pipeline
        self._history = history
        storage = pipeline.storage
        self._journal = Journal(storage.blob, storage.meta, runtime=history.runtime, settings=pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area = "journal"
        last = "The last transactions, the newest first."
        yield Endpoint("GET", "/v1/transactions", area, last, self._transactions, {JSON: Transactions}, PageQuery)
        records = "The input of each transaction, the newest first."
        yield Endpoint("GET", "/v1/journal", area, records, self._records, {JSON: Records}, PageQuery)
        errors = "Current problems, and rows that did not fit their table."
        yield Endpoint("GET", "/v1/errors", area, errors, self._errors, {JSON: Errors}, ErrorsQuery)

    async def _transactions(self, _: Request, query: PageQuery) -> Response:
        transactions = await run_in_threadpool(self._history.transactions, query.before, query.limit)
        return answer_struct(Transactions(transactions))

    async def _records(self, _: Request, query: PageQuery) -> Response:
        return await run_in_threadpool(self._read_records, query)

    def _read_records(self, query: PageQuery) -> Response:
        upper = self._journal.upper
        last = (upper if query.before is None else min(query.before, upper)) - 1
        lines = self._journal.describe(max(0, last - query.limit + 1), last)
        return answer_struct(Records(lines[::-1]))

    async def _errors(self, _: Request, query: ErrorsQuery) -> Response:
        return await run_in_threadpool(self._read_errors, query.limit)

    def _read_errors(self, limit: int) -> Response:
        shard, time = self._pipeline.view(ERRORS).locate()
        content = select_content(ERRORS, shard, time)
        rows = [row for table in content.tables(limit) for row in to_json_rows(table)]
        count = sum(part.count for part in shard.log.read().state.parts)
        status = self._pipeline.status()
        problems = [*list_problems(status)]
        return answer_struct(Errors(content.time, problems, rows, count, is_truncated=count > len(rows)))


def list_problems(status: Status) -> Iterator[ReportedProblem]:
    """The problems of the pipeline, its sources, sinks and views, each once."""
    reasons: set[str] = set()
    for source in status.sources:
        for problem in source.problems:
            reasons.add(problem.why)
            yield _report(f"source {source.name!r}", problem)
    for problem in status.problems:
        if problem.why not in reasons:
            yield _report("pipeline", problem)
    for sink in status.sinks:
        if sink.problem is not None:
            yield _report(f"sink {sink.name!r}", sink.problem)
    for view in status.collections:
        if view.state == ComponentState.FAILED:
            code, remedy = ViewFailed.error_code, ViewFailed.remedy
            yield ReportedProblem(f"view {view.name!r}", view.state, code, view.why, remedy, 0.0)


def _report(of: str, problem: Problem) -> ReportedProblem:
    return ReportedProblem(
        of, problem.state, problem.error_code, problem.why, problem.remedy, problem.since_s, problem.wait_s
    )
