"""Translate a server's error responses, and connection errors, into the errors that the pipeline itself would raise.

1. `error_code` selects the class, and the facts are restored: code that catches an error need not know in which process
   it was raised.
2. Errors of HTTP itself (no such path, body too large) are `InvalidInput`, with the server's message.
3. A failed connection is `ServerUnavailable`: nothing happened. If a writing request was sent and its result did not
   arrive, because the connection broke, the answer took too long, or a proxy or a server of another version answers
   with a status of 500 or above, the error is `OutcomeUnknown`: the write may have happened. A status of 503 alone says
   that the request was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import msgspec

from evertide.errors import InvalidInput, OutcomeUnknown, Unavailable
from evertide.json_values import error_from_json

_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_REFUSED = 503


@dataclass(eq=False, repr=False)
class ServerUnavailable(Unavailable):
    """`path` is the method and the URL of the request."""

    message_format = "{path}: the server is unavailable: {why}"
    remedy = "Nothing was changed; retry. If it lasts, check that the server can be reached."


def check_response(response: httpx.Response, *, is_write: bool) -> httpx.Response:
    """Return the response if it is successful; otherwise raise its error."""
    status = response.status_code
    if status < _CLIENT_ERROR:
        return response
    where = f"{response.request.method} {response.request.url.copy_with(query=None)}"
    try:
        body = msgspec.json.decode(response.read())
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict) or "error_code" not in body:
        body = {"message": response.reason_phrase}
    error = error_from_json(body)
    if error is not None:
        raise error
    why = f"{status} {body.get('message', '')}".rstrip()
    if status < _SERVER_ERROR:
        raise InvalidInput(where=where, why=why)
    if is_write and status != _REFUSED:
        raise OutcomeUnknown(path=where, why=why)
    raise ServerUnavailable(path=where, why=why)


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
        if isinstance(error, httpx.ReadTimeout):
            why = f"no answer within {error.request.extensions['timeout']['read']:g} s"
        else:
            why = f"the connection broke: {type(error).__name__} {error}".rstrip()
        if is_write:
            raise OutcomeUnknown(path=where, why=why) from error
        raise ServerUnavailable(path=where, why=why) from error
