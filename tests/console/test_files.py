"""The console's files: complete, served only from the package, and restricted by the policy."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest
from starlette.applications import Starlette

import evertide.console
from evertide.console.routes import POLICY, make_console_routes
from tests.server.access.kit import Asker

FOLDER = Path(evertide.console.__file__).parent / "static"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
MODULES = [name for name in FILES if name.endswith(".js")]
LINES_MAX = 250

MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\b|new Function"
)
IMPORT = re.compile(r'^import (?:[^"]* from )?"(?P<path>[^"]+)"', re.MULTILINE)
ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/)|//cdn|@import|\burl\(")


@pytest.fixture(scope="module")
def client() -> Asker:
    return Asker(Starlette(routes=make_console_routes()))


def test_the_page_and_every_file_are_served_with_their_types(client: Asker) -> None:
    page = client.request("GET", "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (FOLDER / "index.html").read_bytes()
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    for name in FILES:
        answer = client.request("GET", f"/console/{name}")
        assert answer.status_code == 200, name
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"] == kinds.get(PurePosixPath(name).suffix, "text/html; charset=utf-8")
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_policy_forbids_other_origins_and_markup_from_text() -> None:
    told = dict(one.split(" ", 1) for one in POLICY.split("; "))
    assert told["default-src"] == "'none'"
    assert told["script-src"] == told["style-src"] == told["connect-src"] == "'self'"
    assert told["frame-ancestors"] == told["base-uri"] == told["form-action"] == "'none'"
    assert (told["require-trusted-types-for"], told["trusted-types"]) == ("'script'", "'none'")
    assert "unsafe" not in POLICY


def test_a_browser_that_has_a_file_gets_304(client: Asker) -> None:
    tag = client.request("GET", "/console/app.js").headers["etag"]
    again = client.request("GET", "/console/app.js", headers={"If-None-Match": f'W/"x", {tag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert client.request("GET", "/console/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["", "missing.js", "routes.py", "../routes.py", "%2e%2e/routes.py", "screens", "/app.js"]
)
def test_no_other_file_can_be_reached(client: Asker, path: str) -> None:
    assert client.request("GET", f"/console/{path}").status_code == 404


def test_every_imported_module_exists_and_every_module_is_imported() -> None:
    imported = {"app.js", "theme.js"}  # by the page
    for name in MODULES:
        for found in IMPORT.finditer((FOLDER / name).read_text("utf-8")):
            place = (FOLDER / name).parent / found["path"]
            assert place.resolve().is_file(), f"{name} imports {found['path']}"
            imported.add(place.resolve().relative_to(FOLDER).as_posix())
    assert imported == set(MODULES)


@pytest.mark.parametrize("name", FILES)
def test_files_create_no_markup_from_text_and_name_no_other_origin(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    assert not MARKUP.search(text)
    assert not ELSEWHERE.search(text)
    assert not re.search(r"\son\w+=", text) or name.endswith(".js")
    assert len(text.splitlines()) <= LINES_MAX


def test_the_page_loads_every_style_and_the_overrides_last() -> None:
    text = (FOLDER / "index.html").read_text("utf-8")
    loaded = re.findall(r'<link rel="stylesheet" href="console/([^"]+)">', text)
    assert sorted(loaded) == [name for name in FILES if name.endswith(".css")]
    assert (loaded[0], loaded[-1]) == ("style/base.css", "style/small-screens.css")


def test_the_page_has_no_inline_script_or_style() -> None:
    text = (FOLDER / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]* src=)", text) == []
    assert "<style" not in text
    assert "style=" not in text
