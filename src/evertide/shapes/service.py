"""`ShapeService`: starts and stops serving the shapes of a storage."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from starlette.routing import Route

from evertide.pipeline.reading.collections import Collections
from evertide.problem import Problem
from evertide.shapes.http.endpoint import ShapeEndpoint
from evertide.shapes.log.follower import FeedFollower
from evertide.shapes.log.registry import Shapes
from evertide.shapes.options import ShapeOptions

PATH = "/v1/shape"


class ShapeService:
    """Serves all collections of a storage. Stop it after the HTTP server and before the storage."""

    def __init__(self, collections: Collections, options: ShapeOptions | None = None) -> None:
        self.shapes = Shapes(collections, options)
        self.endpoint = ShapeEndpoint(self.shapes)
        self._follower = FeedFollower(self.shapes)

    def route(self) -> Route:
        return Route(PATH, self.endpoint)

    def problems(self) -> list[Problem]:
        """The problems for which live clients get errors."""
        return self.shapes.problems()

    def list_failures(self) -> list[Problem]:
        """Failures of the maintenance of shapes, which stop no client."""
        return self._follower.list_failures()

    def start(self) -> Self:
        self._follower.start()
        return self

    def list_thread_problems(self) -> list[Problem]:
        return self._follower.list_thread_problems()

    def drain(self) -> None:
        """Answer all waiting clients, so that the server can stop without waiting for them."""
        self.shapes.drain()

    def stop(self) -> None:
        self._follower.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
