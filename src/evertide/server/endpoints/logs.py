"""`/v1/logs`: the last log lines of this process, as records (`evertide.logs`). They contain no secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide.logs import LogLine, Ring
from evertide.server.http.answers import JSON, answer_struct
from evertide.server.http.endpoint import Endpoint

__all__ = ["LogEndpoints"]


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=2000, description="The largest number of lines.")] = 100
    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], msgspec.Meta(description="The lowest level.")
    ] = "info"


class LogLines(msgspec.Struct, frozen=True):
    logs: list[LogLine]


class LogEndpoints:
    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring

    def endpoints(self) -> Iterator[Endpoint]:
        last = "The last log lines of this process, the newest first."
        yield Endpoint("GET", "/v1/logs", "status", last, self._logs, {JSON: LogLines}, LogsQuery)

    async def _logs(self, _: Request, query: LogsQuery) -> Response:
        return answer_struct(LogLines([] if self._ring is None else self._ring.lines(query.limit, query.level)))
