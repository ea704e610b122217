"""Many live shapes in one page: through a proxy with HTTP/2, as docs/shapes.md configures it, no request waits."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.reference import DOCS
from tests.server.kit import until
from tests.servers.browser import open_page
from tests.servers.tls import free_port, make_certificate
from tests.shapes.kit import OPTIONS, Shop, order, shop

LIVE = replace(OPTIONS, long_poll_s=20)
MAIN = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{ log_format versions '$server_protocol $request $status'; access_log {folder}/access.log versions;
{paths}
{server} }}
"""
PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
FOLLOW = """(async () => {{
  const read = async (at) => {{
    const query = `table=orders&where=id+%3E+${{at}}&`
    const first = await fetch(`{base}/v1/shape?${{query}}offset=-1`)
    const handle = first.headers.get("electric-handle")
    const log = await fetch(`{base}/v1/shape?${{query}}offset=0_0&handle=${{handle}}`)
    return `{base}/v1/shape?${{query}}offset=${{log.headers.get("electric-offset")}}&handle=${{handle}}&live=true`
  }}
  const live = []
  for (let at = 1000; at < 1010; at++) live.push(await read(at))
  live.forEach((url) => void fetch(url))
  return live.length
}})()"""
PUSH = """(async () => {{
  const headers = {{ "Content-Type": "application/json" }}
  const limit = new Promise((resolve) => setTimeout(() => resolve("waits"), 3000))
  return await Promise.race([fetch("{base}/v1/tables/orders/rows",
    {{ method: "POST", headers, body: {body} }}).then((answer) => answer.status), limit])
}})()"""


@contextmanager
def proxying(folder: Path, s: Shop) -> Iterator[tuple[int, Path]]:
    """Run the configuration of the page, with other ports and files."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    [block] = [block for block in blocks_of(DOCS / "shapes.md") if block.language == "nginx"]
    made, port = make_certificate(folder, "localhost"), free_port()
    assert made is not None
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "app.crt": str(made.certificate),
        "app.key": str(made.key),
        "127.0.0.1:8080": f"127.0.0.1:{s.port}",
    }
    server = block.text
    for before, after in changes.items():
        assert before in server
        server = server.replace(before, after)
    paths = "\n".join(f"{name}_temp_path {folder}/{name};" for name in PATHS)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, paths=paths, server=server))
    with subprocess.Popen([nginx, "-c", str(folder / "nginx.conf")], stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: (folder / "nginx.pid").exists() or process.poll() is not None)
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield port, folder / "access.log"
        finally:
            process.terminate()


def count_clients(s: Shop) -> int:
    """The requests that wait for a change."""
    return sum(one["clients"] for one in s.ask(path="/v1/shapes").body["shapes"])


def test_a_push_does_not_wait_for_live_shapes_through_http_2(tmp_path: Path) -> None:
    with shop(options=LIVE) as s, proxying(tmp_path, s) as (port, log):
        s.push(rows=[order(1)])
        direct, proxied = f"http://localhost:{s.port}", f"https://localhost:{port}"
        for base, expected in ((proxied, 200), (direct, "waits")):
            until(lambda: count_clients(s) == 0)
            # A page without requests of its own: the console would hold connections too.
            with open_page(f"{base}/console/tide.svg") as page:
                assert page.ask(FOLLOW.format(base=base)) == 10
                until(lambda: count_clients(s) >= 6)
                body = json.dumps(json.dumps([order(2)]))
                assert page.ask(PUSH.format(base=base, body=body)) == expected, base
        lines = log.read_text().splitlines()
        assert lines
        assert all(line.startswith("HTTP/2.0 ") for line in lines)
