"""Serve the console's files: the page at `/`, and its modules, style and picture under `/console/`.

1. All files are in the package and are served as they are: there is no build step, and nothing is loaded from
   elsewhere.
2. They are read when the routes are created. A path is looked up among their names, so no other file can be reached.
3. The page may run its own modules and send requests to its own server, and nothing else (`POLICY`). Text can never
   become markup, even if a module tried: the browser refuses it (trusted types). No other site may frame the page.
4. A browser revalidates each file with its digest (`ETag`), so that an upgrade is visible at once.
5. The files contain no data, so they need no token. The requests of the page do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_PAGE = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _StaticFile:
    content: bytes
    media_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers={**headers, "Content-Type": self.media_type})


def make_console_routes() -> list[BaseRoute]:
    by_path = dict(_read(files("evertide.console").joinpath("static"), ""))

    async def page(request: Request) -> Response:
        return by_path[_PAGE].answer(request)

    async def file(request: Request) -> Response:
        requested = by_path.get(request.path_params["path"])
        if requested is None:
            raise HTTPException(404)
        return requested.answer(request)

    return [Route("/", page), Route("/console/{path:path}", file)]


def _read(folder: Traversable, prefix: str) -> list[tuple[str, _StaticFile]]:
    entries = []
    for each in folder.iterdir():
        name = f"{prefix}{each.name}"
        media_type = _TYPES.get(name.rpartition(".")[2])
        if each.is_dir():
            entries += _read(each, f"{name}/")
        elif media_type is not None:
            content = each.read_bytes()
            entries.append((name, _StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')))
    return entries
