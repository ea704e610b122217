"""The webhook sink: sends each transaction as an HTTP POST of JSON, at least once.

    POST <url>
    Content-Type: application/json
    Idempotency-Key: <sink>-<token>-<transaction>-<request>

    {"sink": "hook", "collection": "revenue", "transaction": 7, "request": 1, "requests": 1,
     "changes": [{"diff": -1, "row": {"customer": "ann", "total": "10.00"}}, {"diff": 1, "row": {...}}]}

1. After a crash or a lost response the sink may repeat a request, with the same key and content: the receiver ignores
   a key that it has already processed.
2. Requests are sent in order; a large transaction is sent in several requests. If the option `rows` changes after some
   of them were sent, all are sent again, with other keys, as each has other changes: the key then ends with `-<rows>`.
3. A status of 2xx acknowledges the request. After 408, 425, 429, 5xx or no response the sink retries, with growing
   waits. Any other status, including a redirect, stalls the sink until the cause is corrected.

Decimals are texts, times are ISO 8601, binary is base64, and numbers that JSON lacks are "nan", "inf" or "-inf".
Options: `url`, `timeout_s` (30), `rows` (the most of one request; 10,000), `header.<name>`.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
import pyarrow as pa

from evertide.errors import SinkFailed
from evertide.json_values import to_json_value
from evertide.rows.changes import DIFF
from evertide.rows.python_rows import to_python_rows
from evertide.runtime import Runtime
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration

_ROWS = 10_000
_ATTEMPTS = 4
_WAIT_S = 0.2
_TEMPORARY = {408, 425, 429}
_SHOWN = 200


def prepare_webhook(declaration: SinkDeclaration) -> Prepared:
    secrets = Secrets(declaration.base)
    options = declaration.read_options(secrets)
    url = urlsplit(options.require("url", "https://example.org/hook"))
    if url.scheme not in ("http", "https") or not url.hostname:
        raise options.refusal("url", f"is {url.geturl()!r}: expected http://host/path or https://host/path")
    if url.username is not None:
        raise options.refusal("url", "contains a user name; use the option 'header.authorization' instead")
    timeout_s = options.number("timeout_s", 30.0)
    rows = options.integer("rows", _ROWS, least=1)
    headers = options.read_prefixed("header.")
    options.check_unknown()
    for name, value in headers.items():
        if not name.isascii() or not value.isprintable():
            raise options.refusal(f"header.{name}", "is not valid: a header is one line of text")
    call = _RequestSettings(url, headers, timeout_s or None, rows)
    return Prepared(lambda token: WebhookSink(declaration, call, token, secrets), request_rows=rows)


@dataclass(frozen=True, slots=True)
class _RequestSettings:
    url: SplitResult
    headers: Mapping[str, str]
    timeout_s: float | None
    rows: int


class WebhookSink:
    keeps_number = False

    def __init__(self, declaration: SinkDeclaration, call: _RequestSettings, token: str, secrets: Secrets) -> None:
        self.name = declaration.name
        self._collection = declaration.collection
        self._call = call
        self._token = token
        self._secrets = secrets
        self._runtime: Runtime = declaration.runtime

    def last(self) -> int | None:
        """Unknown: the sink cannot query the receiver, so the number that the pipeline recorded counts."""
        return None

    def write(self, time: int, changes: Changes) -> None:
        requests, suffix = -(-changes.rows // self._call.rows), self._key_suffix(changes)
        for request, chunk in enumerate(_rechunk(self._call.rows, changes), 1):
            body = {
                "sink": self.name,
                "collection": self._collection,
                "transaction": time,
                "request": request,
                "requests": requests,
                "changes": [_encode_change(row) for row in to_python_rows(chunk, has_text_maps=True)],
            }
            self._post(f"{self.name}-{self._token}-{time}-{request}{suffix}", msgspec.json.encode(body))

    def close(self) -> None:
        pass

    def _key_suffix(self, changes: Changes) -> str:
        """Distinguishes requests of another size. Empty if the default size gives the same requests."""
        rows = self._call.rows
        return "" if rows == _ROWS or changes.rows <= min(rows, _ROWS) else f"-{rows}"

    def _post(self, key: str, body: bytes) -> None:
        wait_s = _WAIT_S
        for left in reversed(range(_ATTEMPTS)):
            try:
                status, answer = self._send(key, body)
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, f"{type(error).__name__}: {error}"
            if 200 <= status < 300:
                return
            if left == 0 or not (status == 0 or status in _TEMPORARY or status >= 500):
                why = answer if status == 0 else f"the receiver responded with status {status}: {answer}"
                where = self._secrets.hide(self._call.url.geturl())
                raise SinkFailed(sink=self.name, where=where, why=self._secrets.hide(why))
            self._runtime.sleep_s(wait_s * (0.5 + self._runtime.random()))
            wait_s *= 2

    def _send(self, key: str, body: bytes) -> tuple[int, str]:
        url, host = self._call.url, self._call.url.hostname or ""
        if url.scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, url.port, timeout=self._call.timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, url.port, timeout=self._call.timeout_s)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        headers = {"content-type": "application/json", **self._call.headers, "idempotency-key": key}
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            # hidden before the text is shortened, so that no part of a secret remains
            text = self._secrets.hide(answer.read(4 * _SHOWN).decode("utf-8", "replace"))
            return answer.status, " ".join(text.split())[:_SHOWN]
        finally:
            connection.close()


def _rechunk(rows: int, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """All rows in order, in tables of `rows` rows; the last one may have fewer."""
    left: pa.Table | None = None
    for piece in pieces:
        table = piece if left is None else pa.concat_tables([left, piece])
        whole = table.num_rows - table.num_rows % rows
        yield from (table.slice(start, rows) for start in range(0, whole, rows))
        left = table.slice(whole)
    if left is not None and left.num_rows:
        yield left


def _encode_change(row: dict[str, Any]) -> dict[str, Any]:
    diff = row.pop(DIFF)
    return {"diff": diff, "row": to_json_value(row)}
