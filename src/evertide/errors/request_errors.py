"""Errors that the caller resolves, by changing the request or the state that forbids it."""

from __future__ import annotations

from dataclasses import dataclass

from evertide.errors.base import EvertideError


@dataclass(eq=False, repr=False)
class InvalidInput(EvertideError):
    """`where` names the place (table, column, argument, path), `why` what is wrong there."""

    error_code = "invalid_input"
    exit_code = 2
    summary = "The input is wrong"
    message_format = "{where}: {why}"
    remedy = "Nothing was changed; correct the input and retry."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class NotAllowedNow(EvertideError):
    """The request is valid, but the state of `where` does not allow it; `why` names that state and how to leave it."""

    error_code = "not_allowed_now"
    exit_code = 19
    summary = "The present state of the pipeline does not allow this"
    message_format = "{where}: {why}"
    remedy = "Nothing was changed."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Closed(EvertideError):
    """`where` names what was closed."""

    error_code = "closed"
    exit_code = 20
    summary = "The pipeline is closed"
    message_format = "{where} is closed"
    remedy = "Nothing was changed; open it again."

    where: str


@dataclass(eq=False, repr=False)
class SetupIncomplete(EvertideError):
    """`where` names what cannot be used, `why` what is missing on this machine, and how to install or start it."""

    error_code = "setup_incomplete"
    exit_code = 21
    summary = "Something that Evertide needs is not installed, or does not start"
    message_format = "{where}: {why}"
    remedy = "Nothing was changed; correct the installation or its settings, then start again."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class LimitExceeded(EvertideError):
    """`why` names the limit. Nothing was changed; the same request exceeds the limit again."""

    error_code = "limit_exceeded"
    exit_code = 17
    summary = "The request exceeds a limit"
    message_format = "{where}: {why}"
    remedy = "Ask for less at a time, or let the server's operator raise the limit (`--set`)."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Unauthorized(EvertideError):
    """`where` is the method and the address. The token that was sent is not a fact, so that no log shows it."""

    error_code = "unauthorized"
    exit_code = 15
    summary = "The request has no valid token"
    message_format = "{where}: {why}"
    remedy = "Send a token that this server knows: `Authorization: Bearer TOKEN`."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Forbidden(EvertideError):
    """`role` is the role that is needed; empty if the reason is not a missing role."""

    error_code = "forbidden"
    exit_code = 16
    summary = "The token, or the host that the request names, does not allow this"
    message_format = "{where}: {why}"
    remedy = "Use a token or a host that is allowed; docs/security.md lists what each role may do."

    where: str
    why: str
    role: str = ""
