"""`ShapeOptions`: the limits of a process that serves shapes, as times, sizes and counts.

Caches between server and clients, and browsers, keep answers for as long as `Cache-Control` says. The three `_stale_s`
are how much longer they may give an old answer while they fetch a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from evertide.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    deletion: bool = False
    """Whether clients may end shapes with DELETE."""

    long_poll_s: float = 20.0
    """How long a live request waits for a change."""

    sse_s: float = 60.0
    """How long a stream of events lasts."""

    keep_alive_s: float = 21.0
    """The longest silence in such a stream."""

    stale_s: float = 10.0
    """A live request fails instead of reporting up-to-date if the feed was not followed for this long."""

    ready_s: float = 5.0
    """How long a request waits for a collection that has no content yet."""

    chunk_bytes: int = 256 * 1024
    """About the largest body of one answer. The server gives such a body to the kernel in one write: Electric's client
    repeats a request without an answer, but ends its stream if an answer breaks off."""

    body_bytes_max: int = 1024 * 1024
    """The largest request body."""

    shapes_max: int = 10_000
    """The most shapes of a storage. Beyond that, the least recently used shapes are ended."""

    definitions_bytes: int = 256 * 1024 * 1024
    """The most bytes of all definitions in Meta, because parameters may be long. Beyond that, as for `shapes_max`."""

    log_rows_max: int = 1_000_000
    """A shape is ended when its log exceeds this many changes and the number of rows that it began with."""

    memory_bytes: int = 96 * 1024 * 1024
    """Memory for caches: logs, small snapshots and collection contents get a third each."""

    disk_bytes: int = 4 * 1024 * 1024 * 1024
    """The most bytes of all snapshots in temporary files."""

    idle_s: float = 60.0
    """A shape without requests for this long is no longer followed, until the next request for it."""

    clients_max: int = 10_000
    """The most concurrent requests, waiting ones included."""

    new_clients_max: int = 300
    """The most concurrent requests that begin a shape: their snapshots may have to be created."""

    threads: int = 16
    """The most requests that read the storage concurrently."""

    snapshot_cache_s: int = 604_800
    """How long a browser keeps the first answer of a shape. Its content never changes: the log continues it."""

    snapshot_shared_cache_s: int = 3_600
    """How long a shared cache keeps it. A new client whose snapshot is older reads a longer log."""

    snapshot_stale_s: int = 2_629_746

    log_cache_s: int = 60
    """How long an answer to a request that is not live is kept. Clients that start meanwhile get it, and continue from
    there."""

    log_stale_s: int = 300

    live_cache_s: int = 5
    """How long an answer to a live request is kept: long enough for a cache to give one answer to all that wait."""

    live_stale_s: int = 5

    @property
    def share_bytes(self) -> int:
        """The third of `memory_bytes` that each cache gets."""
        return self.memory_bytes // 3

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool):
                continue
            is_age = one.name.endswith(("_cache_s", "_stale_s"))  # as a header has it
            if not isinstance(value, int if is_age else int | float) or value < (0 if is_age else 1e-9):
                kind = "a whole number from 0 on" if is_age else "a positive number"
                raise InvalidInput(where=f"shapes.{one.name}", why=f"must be {kind}, not {value!r}")
