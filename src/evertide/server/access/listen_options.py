"""`ListenOptions`: the tokens, TLS, hosts and limits of a server.

A server that other machines can reach needs tokens, unless the operator states explicitly that it is open.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from evertide.errors import InvalidInput
from evertide.server.access.access import Access
from evertide.server.access.body_memory import BodyMemory
from evertide.server.access.connections import ClientTimeouts
from evertide.server.access.hosts import HostCheck, is_loopback
from evertide.server.access.origins import CrossOrigin, parse_origin
from evertide.server.access.tls import Tls
from evertide.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    access: Access = field(default_factory=Access)
    tls: Tls | None = None
    hosts: tuple[str, ...] = ()
    """Names that requests may use in addition to those of this machine."""
    origins: tuple[str, ...] = ()
    """Pages of these origins may use the API from a browser, as in `https://app.example`."""
    is_insecure: bool = False
    """Whether other machines may reach the server without tokens."""
    settings: Settings = field(default_factory=Settings)
    """Limits of connections, clients and bodies."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "origins", tuple(map(parse_origin, self.origins)))

    def check(self, listen: str, host: str) -> None:
        """`host` is the address that was bound."""
        if is_loopback(host):
            return
        if self.access.is_open and not self.is_insecure:
            why = (
                "other machines can reach this address, and the server has no tokens; set --tokens FILE or "
                "EVERTIDE_TOKEN, listen on 127.0.0.1, or set --insecure to let every client read and write everything"
            )
            raise InvalidInput(where=f"address {listen!r}", why=why)
        if self.access.is_open:
            logger.warning("no tokens: every client that reaches %s may read and write everything", listen)
        elif self.tls is None:
            logger.warning("clients send tokens to %s unencrypted: set --tls-cert, or use a proxy with TLS", listen)

    def wrap(self, app: ASGIApp, host: str) -> ClientTimeouts:
        """The app, behind the checks of hosts, origins, bodies and timeouts."""
        is_open = self.access.is_open
        hosts = HostCheck(app, self.hosts, self.origins, is_loopback=is_loopback(host), is_open=is_open)
        memory = BodyMemory(hosts, self.settings.bodies_bytes_max, self.settings.bodies_wait_s)
        # Outermost, so that waiting for memory does not count as a pause of the client.
        return ClientTimeouts(CrossOrigin(memory, self.origins), self.settings.request_pause_s)
