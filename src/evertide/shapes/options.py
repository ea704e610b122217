"""What whoever serves shapes may choose: times, sizes, counts. Components are passed in beside it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from evertide.errors import InvalidInput

__all__ = ["ShapeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    deletion: bool = False
    """Whether clients may end shapes."""

    long_poll_s: float = 20.0
    """How long a live request waits for a change."""

    sse_s: float = 60.0
    """How long a stream of events lasts."""

    keep_alive_s: float = 21.0
    """How long such a stream is silent at most."""

    stale_s: float = 10.0
    """A live request is refused instead of told that it is up to date, if changes were not looked for in this time."""

    ready_s: float = 5.0
    """How long a request waits for a collection that has no content yet."""

    chunk_bytes: int = 10 * 1024 * 1024
    """About so much is answered at once."""

    body_bytes_max: int = 1024 * 1024
    """The body of a request."""

    shapes_max: int = 10_000
    """How many there may be; beyond it, those that nobody asked for the longest are ended."""

    definitions_bytes: int = 256 * 1024 * 1024
    """What the definitions of all shapes take in Meta; the same happens beyond it. Clauses may have long parameters."""

    log_rows_max: int = 1_000_000
    """A shape is ended when so many changes of its collection are kept for it, and more than it began with."""

    memory_bytes: int = 96 * 1024 * 1024
    """What is remembered to be told again: logs, small snapshots, and contents that many begin with, a third each."""

    disk_bytes: int = 4 * 1024 * 1024 * 1024
    """What snapshots take in temporary files, all together."""

    idle_s: float = 60.0
    """A shape that nobody asks for so long is not followed any more; it is taken up again when somebody does."""

    clients_max: int = 10_000
    """Requests that are answered, or wait, at the same time."""

    newcomers_max: int = 300
    """Of these, the ones that begin: their snapshot may have to be made."""

    threads: int = 16
    """Requests that read storage at the same time."""

    @property
    def share_bytes(self) -> int:
        """Of `memory_bytes`, for each of the three."""
        return self.memory_bytes // 3

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool):
                continue
            if not isinstance(value, int | float) or value <= 0:
                raise InvalidInput(where=f"shapes.{one.name}", why=f"must be a positive number, not {value!r}")
