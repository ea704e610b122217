"""`Hosts`: a web page must not reach a server of this machine through the browser of whoever sits in front of it.

1. Who listens on loopback is asked for by a name of this machine, or by one that was configured. Another name in `Host`
   is that of a page whose name was made to lead here (DNS rebinding): 403.
2. Without tokens, a request that a browser sends for a page (`Origin`) is served if the page comes from the host that
   is asked, from this machine, or from a host that was configured; else 403. With tokens the token decides: a page
   of another origin has none, as there are no cookies here.
3. A browser sends some requests without `Origin` (images, scripts, forms under some policies, links), and says in
   `Sec-Fetch-Site` where they come from. Without tokens, such a request of another site is refused too. Only a link to
   the console may be followed. Another port of the same host (`same-site`) may read, but not change anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from evertide.errors import Forbidden
from evertide.server.http.answers import refused

__all__ = ["Hosts", "is_loopback"]

_OTHER_PAGE = "it comes from a web page of another host, and there are no tokens: --allow-host NAME lets one in"
_SAFE = ("GET", "HEAD", "OPTIONS")


class Hosts:
    def __init__(self, app: ASGIApp, names: Iterable[str], *, is_loopback: bool, is_open: bool) -> None:
        """`names` are those beside the ones of this machine."""
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._is_loopback = is_loopback
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            why = self._why_not(request)
            if why:
                error = Forbidden(where=f"{request.method} {scope['path']}", why=why)
                await refused(request, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _why_not(self, request: Request) -> str:
        hosts = request.headers.getlist("host")
        host = _host_of(f"//{hosts[0]}") if len(hosts) == 1 else ""
        if self._is_loopback and not self._is_ours(host):
            return "the header Host names no host of this machine: give --allow-host NAME if a proxy stands in front"
        if not self._is_open:
            return ""
        origin = request.headers.get("origin")
        if origin is None:
            return _OTHER_PAGE if _is_of_other_site(request) else ""
        page = _host_of(origin)
        if page and (page == host or self._is_ours(page)):
            return ""
        return _OTHER_PAGE

    def _is_ours(self, host: str) -> bool:
        return bool(host) and (host in self._names or is_loopback(host))


def _is_of_other_site(request: Request) -> bool:
    """Whether a browser says that a request without `Origin` was caused by a page of another site."""
    sites = {site.strip().lower() for site in request.headers.getlist("sec-fetch-site")}
    if sites <= {"same-origin", "none"}:  # programs send none, the address bar of a browser sends "none"
        return False
    if request.method not in _SAFE:
        return True
    is_link = request.headers.get("sec-fetch-mode") == "navigate"
    is_console = request.scope["path"] == "/" or request.scope["path"].startswith("/console/")
    return sites != {"same-site"} and not (is_link and is_console)


def is_loopback(host: str) -> bool:
    """Of a name or an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        return "" if "@" in parts.netloc else (parts.hostname or "").rstrip(".")
    except ValueError:
        return ""
