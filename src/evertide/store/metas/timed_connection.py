"""`TimedConnection`: a PostgreSQL connection that gives up when the server stays silent for too long.

`tcp_user_timeout` and keepalives detect a network that loses packets. They do not detect a proxy, a load balancer or a
server that hangs while its operating system still acknowledges packets. So each call has its own limit, on the seconds
without a byte from the server, not on the duration of the call. Connecting has libpq's limit (`connect_timeout`).

Import this module only when psycopg is needed: `evertide.store` must be importable without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import psycopg


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    limit_s: float | None = None
    """The seconds that the server may stay silent during a call; None: no limit."""
    clock_s: Callable[[], float]

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """psycopg calls this for every call to the server."""
        return super().wait(gen if self.limit_s is None else self._limit(gen, self.limit_s), *args, **options)

    def _limit(self, gen: Generator[Any, Any, Any], limit_s: float) -> Generator[Any, Any, Any]:
        """Pass everything on. psycopg resumes the generator several times per second, with `NONE` if no data came."""
        try:
            wanted = next(gen)
            heard_s = self.clock_s()
            while True:
                ready = yield wanted
                if ready:
                    heard_s = self.clock_s()
                elif self.clock_s() - heard_s > limit_s:
                    self.pgconn.finish()  # its state is unknown
                    raise psycopg.OperationalError(f"the server did not answer for {limit_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
