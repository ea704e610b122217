"""`HostCheck`: refuses requests that a page of another site causes in the browser of a user who can reach the server.

1. A server that listens on loopback accepts only `Host` headers that name this machine or a configured host. Another
   name is DNS rebinding, the name of a page made to resolve to this machine: 403.
2. Without tokens, a request with `Origin` is served if the page comes from the host of the request, from this machine,
   from a configured host, or from a configured origin; otherwise 403. With tokens, the token decides: a page of another
   origin has none, because the server uses no cookies.
3. A browser sends some requests without `Origin` (images, scripts, links, some forms), and names their cause in
   `Sec-Fetch-Site`. Without tokens, such a request of another site is refused too, except a link to the console.
   Another port of the same host (`same-site`) may read, but not change anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from evertide.errors import Forbidden
from evertide.server.http.answers import answer_error

_OTHER_PAGE = "a page of another host sent the request, and the server has no tokens; allow it with --allow-origin URL"
_SAFE = ("GET", "HEAD", "OPTIONS")


class HostCheck:
    def __init__(
        self, app: ASGIApp, names: Iterable[str], origins: Iterable[str] = (), *, is_loopback: bool, is_open: bool
    ) -> None:
        """`names` are allowed in addition to the names of this machine, and pages of `origins`."""
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._origins = frozenset(origins)
        self._is_loopback = is_loopback
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            why = self._explain_refusal(request)
            if why:
                error = Forbidden(where=f"{request.method} {scope['path']}", why=why)
                await answer_error(request, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _explain_refusal(self, request: Request) -> str:
        hosts = request.headers.getlist("host")
        host = _read_host(f"//{hosts[0]}") if len(hosts) == 1 else ""
        if self._is_loopback and not self._is_allowed(host):
            return "the Host header does not name this machine; behind a proxy, allow its name with --allow-host NAME"
        if not self._is_open:
            return ""
        origin = request.headers.get("origin")
        if origin is None:
            return _OTHER_PAGE if _is_cross_site(request) else ""
        page = _read_host(origin)
        if origin in self._origins or (page and (page == host or self._is_allowed(page))):
            return ""
        return _OTHER_PAGE

    def _is_allowed(self, host: str) -> bool:
        return bool(host) and (host in self._names or is_loopback(host))


def _is_cross_site(request: Request) -> bool:
    """Whether the browser names a page of another site as the cause of a request without `Origin`."""
    sites = {site.strip().lower() for site in request.headers.getlist("sec-fetch-site")}
    if sites <= {"same-origin", "none"}:  # programs send no header, the address bar of a browser sends "none"
        return False
    if request.method not in _SAFE:
        return True
    is_link = request.headers.get("sec-fetch-mode") == "navigate"
    is_console = request.scope["path"] == "/" or request.scope["path"].startswith("/console/")
    return sites != {"same-site"} and not (is_link and is_console)


def is_loopback(host: str) -> bool:
    """`host` is a name or an IP address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        return "" if "@" in parts.netloc else (parts.hostname or "").rstrip(".")
    except ValueError:
        return ""
