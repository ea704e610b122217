"""`TimedConnection`: a connection to PostgreSQL that is given up when the server stays silent for too long.

`tcp_user_timeout` and keepalives notice a network that loses packets. They do not notice a proxy, a load balancer or a
server that hangs while its operating system still acknowledges what arrives. So each call has a limit of its own: it
counts the seconds without a byte from the server, not the seconds that an answer takes. Connecting has libpq's own
limit (`connect_timeout`).

Imported only when psycopg is needed: `evertide.store` must be importable without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import psycopg

__all__ = ["TimedConnection"]


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    limit_s: float | None = None
    """How many seconds the server may stay silent in the middle of a call; None: for ever."""
    clock_s: Callable[[], float]

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """psycopg runs every call through this."""
        return super().wait(gen if self.limit_s is None else self._limited(gen, self.limit_s), *args, **options)

    def _limited(self, gen: Generator[Any, Any, Any], limit_s: float) -> Generator[Any, Any, Any]:
        """Passes everything on. psycopg resumes it several times per second, with `NONE` if nothing came."""
        try:
            wanted = next(gen)
            heard_s = self.clock_s()
            while True:
                ready = yield wanted
                if ready:
                    heard_s = self.clock_s()
                elif self.clock_s() - heard_s > limit_s:
                    self.pgconn.finish()  # nobody knows what it is at
                    raise psycopg.OperationalError(f"the server did not answer for {limit_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
