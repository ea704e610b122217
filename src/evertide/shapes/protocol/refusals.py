"""Refusals: status codes of Electric's protocol, with a reason as JSON.

Errors in a request are listed by parameter under `errors`; every other reason is a `message`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evertide.errors import EvertideError, InvalidInput, Unavailable
from evertide.pgexpr.restriction import Restriction

__all__ = ["KNOWN_ERROR", "Refusal", "refuse_ended", "refuse_error", "refuse_invalid", "refuse_not_ready"]

KNOWN_ERROR = "electric-internal-known-error"
_MUST_REFETCH = b'[{"headers":{"control":"must-refetch"}}]'
_READY_AFTER_S = 5


class Refusal(Exception):
    def __init__(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.headers = dict(headers or {})


def refuse_invalid(errors: Mapping[str, list[str]]) -> Refusal:
    """400 with the errors by parameter."""
    return Refusal(400, {"message": "Invalid request", "errors": dict(errors), "error_code": InvalidInput.error_code})


def refuse_not_ready(why: str) -> Refusal:
    known = {"message": why, "error_code": Unavailable.error_code}
    return Refusal(503, known, {"retry-after": str(_READY_AFTER_S), KNOWN_ERROR: "true"})


def refuse_ended(handle: str) -> Refusal:
    """409: the requested shape has ended. `handle` is the new shape to begin with, if there is one."""
    kept = "public, max-age=60, must-revalidate" if handle else "public, max-age=1, must-revalidate"
    return Refusal(409, _MUST_REFETCH, {"cache-control": kept, **({"electric-handle": handle} if handle else {})})


def refuse_error(error: EvertideError, status: int, restriction: Restriction) -> Refusal:
    """The refusal for an error of the storage or the pipeline."""
    headers = {"retry-after": str(_READY_AFTER_S), KNOWN_ERROR: "true"} if status == 503 else {}
    return Refusal(status, restriction.error_json(error), headers)
