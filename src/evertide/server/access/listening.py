"""`Listening`: how a server listens, as options say it: to whom (tokens, hosts), how (TLS), and how much (settings).

A server that other machines reach needs tokens. Whoever wants it open all the same has to say so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from evertide.errors import InvalidInput
from evertide.server.access.access import Access
from evertide.server.access.body_memory import Room
from evertide.server.access.connections import Patience
from evertide.server.access.hosts import Hosts, is_loopback
from evertide.server.access.tls import Tls
from evertide.settings import Settings

__all__ = ["Listening"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    access: Access = field(default_factory=Access.open)
    tls: Tls | None = None
    hosts: tuple[str, ...] = ()
    """Names, beside those of this machine, that requests may name."""
    is_insecure: bool = False
    """Whether others may reach it though there are no tokens."""
    settings: Settings = field(default_factory=Settings)
    """How many connections, how slow a client may be, and how much the bodies of all may take."""

    def check(self, listen: str, host: str) -> None:
        """`host` is the address that was bound."""
        if is_loopback(host):
            return
        if self.access.is_open and not self.is_insecure:
            why = (
                "other machines reach it, and there are no tokens: give --tokens FILE or EVERTIDE_TOKEN, listen at "
                "127.0.0.1 instead, or say --insecure if whoever reaches it may read and write everything"
            )
            raise InvalidInput(where=f"address {listen!r}", why=why)
        if self.access.is_open:
            logger.warning("whoever reaches %s may read and write everything: there are no tokens", listen)
        elif self.tls is None:
            logger.warning("tokens go to %s as they are: give --tls-cert, or put a proxy with TLS in front", listen)

    def wrapped(self, app: ASGIApp, host: str) -> Patience:
        """The app behind what is looked at before it."""
        checked = Hosts(app, self.hosts, is_loopback=is_loopback(host), is_open=self.access.is_open)
        counted = Room(checked, self.settings.bodies_bytes_max, self.settings.bodies_wait_s)
        return Patience(counted, self.settings.request_pause_s)  # outside: to wait for room is no pause of the client's
