"""`/v1/shapes`: lists the shapes in the storage, of all processes, and ends one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.media import JSON
from evertide.server.http.answers import answer_struct, make_not_found
from evertide.server.http.endpoint import Endpoint, NoQuery
from evertide.shapes.log.live_shape import LiveShape
from evertide.shapes.log.record import ShapeRecord, estimate_log_rows
from evertide.shapes.log.registry import Shapes
from evertide.shapes.service import ShapeService


class Shape(msgspec.Struct, frozen=True):
    handle: str
    collection: str
    columns: list[str]
    where: str | None
    time: int
    """The time of the snapshot."""
    made_at_s: float
    rows: int
    """Changes in the collection at that time."""
    log_rows: int
    """Changes in the log, approximately."""
    bytes: int
    """Memory that the log takes in this process."""
    clients: int
    """Clients that wait for a change in this process."""


class ShapesAnswer(msgspec.Struct, frozen=True):
    shapes: list[Shape]


class EndShapeAnswer(msgspec.Struct, frozen=True):
    handle: str


class ShapeEndpoints:
    def __init__(self, service: ShapeService) -> None:
        self._shapes: Shapes = service.shapes

    def endpoints(self) -> Iterator[Endpoint]:
        area = "shapes"
        yield Endpoint("GET", "/v1/shapes", area, "All shapes.", self._all, {JSON: ShapesAnswer})
        end = "End a shape; its clients start again with a new one."
        path = "/v1/shapes/{handle}"
        yield Endpoint("DELETE", path, area, end, self._end, {JSON: EndShapeAnswer}, refusals=(400, 404))

    async def _all(self, _: Request, __: NoQuery) -> Response:
        return answer_struct(ShapesAnswer(await run_in_threadpool(self._list)))

    def _list(self) -> list[Shape]:
        self._shapes.refresh_collections()
        live = {shape.handle: shape for shape in self._shapes.live()}
        return [self._shape(record, live.get(record.handle)) for record in self._shapes.records.all()]

    def _shape(self, record: ShapeRecord, live: LiveShape | None) -> Shape:
        definition = msgspec.json.decode(record.definition)
        state = self._shapes.members.shard(record.shard).log.read().state
        return Shape(
            handle=record.handle,
            collection=record.collection,
            columns=list(definition["columns"]),
            where=definition["where"],
            time=record.time,
            made_at_s=record.made_at_s,
            rows=record.rows,
            log_rows=estimate_log_rows(record, state),
            bytes=live.bytes if live is not None else 0,
            clients=len(live.waiters) if live is not None else 0,
        )

    async def _end(self, request: Request, _: NoQuery) -> Response:
        handle: str = request.path_params["handle"]
        if not await run_in_threadpool(self._shapes.end, handle, "a client ended it"):
            raise make_not_found(f"shape {handle!r}", "no shape has this handle")
        return answer_struct(EndShapeAnswer(handle))
