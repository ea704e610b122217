"""Translate a server's error responses, and connection errors, into the errors that the pipeline itself would raise.

1. `error_code` selects the class, and the facts are restored: code that catches an error need not know in which process
   it was raised.
2. Errors of HTTP itself (no such path, body too large) are `InvalidInput`, with the server's message.
3. A failed connection is `ServerUnavailable`: nothing happened. If the connection breaks after a writing request was
   sent, or a proxy reports that it lost the server, the error is `OutcomeUnknown`: the write may have happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import msgspec

from evertide.errors import EvertideError, InvalidInput, OutcomeUnknown, Unavailable
from evertide.json_values import error_from_json

__all__ = ["ServerUnavailable", "check_response", "translate_errors"]

_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_GATEWAY_ERRORS = (500, 502, 504)
"""The status codes of a proxy that forwarded a request and got no complete response."""
_SAFE_METHODS = ("GET", "HEAD")


@dataclass(eq=False, repr=False)
class ServerUnavailable(Unavailable):
    """`path` is the method and the URL of the request."""

    message_format = "{path}: the server is unavailable: {why}"
    remedy = "Nothing was changed; retry. If it lasts, check that the server can be reached."


def check_response(response: httpx.Response) -> httpx.Response:
    """Return the response if it is successful; otherwise raise its error."""
    if response.status_code < _CLIENT_ERROR:
        return response
    where = f"{response.request.method} {response.request.url.copy_with(query=None)}"
    try:
        body = msgspec.json.decode(response.read())
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict) or "error_code" not in body:
        is_lost = response.status_code in _GATEWAY_ERRORS and response.request.method not in _SAFE_METHODS
        raise _make_error(where, response.status_code, response.reason_phrase, is_lost=is_lost)
    error = error_from_json(body)
    if error is None:
        raise _make_error(where, response.status_code, str(body.get("message", "")))
    raise error


def _make_error(where: str, status: int, reason: str, *, is_lost: bool = False) -> EvertideError:
    if is_lost:
        return OutcomeUnknown(path=where, why=f"{status} {reason}: a proxy got no answer from the server")
    if status >= _SERVER_ERROR:
        return ServerUnavailable(path=where, why=f"{status} {reason}")
    return InvalidInput(where=where, why=f"{status} {reason}")


@contextmanager
def translate_errors(where: str, *, is_write: bool) -> Iterator[None]:
    """Translate connection errors raised in the block."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise ServerUnavailable(path=where, why=f"no connection: {error}") from error
    except httpx.InvalidURL as error:
        raise InvalidInput(where=where, why=str(error)) from error
    except httpx.UnsupportedProtocol as error:
        raise InvalidInput(where=where, why=f"{error}; expected http:// or https://") from error
    except httpx.HTTPError as error:
        why = f"the connection broke: {type(error).__name__} {error}".rstrip()
        if is_write:
            raise OutcomeUnknown(path=where, why=why) from error
        raise ServerUnavailable(path=where, why=why) from error
