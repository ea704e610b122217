"""The role that each address needs, in one table.

1. An address that is not in the table needs the role admin, so that an endpoint that is missing here is closed.
2. HEAD needs the same role as GET. If several rules match an address, the strictest applies.
3. `is_restricted` means that the endpoint applies the restriction of a token. A restricted token can use no other
   endpoint.
4. Only shapes accept a token in the URL (`?secret=`), because Electric's clients send it there; URLs end up in logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.routing import compile_path

from evertide.server.access.token import Role
from evertide.shapes.service import PATH as SHAPE

__all__ = ["ROLES", "SHAPE", "Rule", "find_rule"]

READ, WRITE, ADMIN = Role.READ, Role.WRITE, Role.ADMIN


@dataclass(frozen=True)
class Rule:
    method: str
    path: str
    """A route's path, with its parameters."""
    role: Role | None
    """None: no token is needed."""
    is_restricted: bool = False

    @cached_property
    def _pattern(self) -> Any:
        return compile_path(self.path)[0]

    def matches(self, method: str, path: str) -> bool:
        return self.method == method and self._pattern.match(path) is not None


ROLES: tuple[Rule, ...] = (
    # The page, health and the API description: no data of the pipeline
    Rule("GET", "/", None, is_restricted=True),
    Rule("GET", "/console/{path:path}", None, is_restricted=True),
    Rule("GET", "/v1/health", None, is_restricted=True),
    Rule("GET", "/v1/health/live", None, is_restricted=True),
    Rule("GET", "/v1/health/ready", None, is_restricted=True),
    Rule("GET", "/v1/openapi.json", None, is_restricted=True),
    # Shapes
    Rule("GET", SHAPE, READ, is_restricted=True),
    Rule("POST", SHAPE, READ, is_restricted=True),
    Rule("OPTIONS", SHAPE, None, is_restricted=True),
    Rule("DELETE", SHAPE, ADMIN),
    Rule("GET", "/v1/shapes", READ),
    Rule("DELETE", "/v1/shapes/{handle}", ADMIN),
    # Collections and their content
    Rule("GET", "/v1/collections", READ),
    Rule("GET", "/v1/tables", READ),
    Rule("GET", "/v1/tables/{name}", READ),
    Rule("GET", "/v1/tables/{name}/rows", READ, is_restricted=True),
    Rule("GET", "/v1/tables/{name}/changes", READ, is_restricted=True),
    Rule("GET", "/v1/views", READ),
    Rule("GET", "/v1/views/{name}", READ),
    Rule("GET", "/v1/views/{name}/rows", READ, is_restricted=True),
    Rule("GET", "/v1/views/{name}/changes", READ, is_restricted=True),
    Rule("GET", "/v1/views/{name}/explain", READ),
    Rule("POST", "/v1/query", READ),
    # Status
    Rule("GET", "/v1/status", READ),
    Rule("GET", "/v1/graph", READ),
    Rule("GET", "/v1/journal", READ),
    Rule("GET", "/v1/errors", READ),
    Rule("GET", "/v1/events", READ),
    Rule("GET", "/v1/checkpoints", READ),
    Rule("GET", "/v1/transactions", READ),
    Rule("GET", "/metrics", READ),
    Rule("GET", "/v1/logs", ADMIN),
    # Writing rows
    Rule("POST", "/v1/tables/{table}/rows", WRITE),
    Rule("POST", "/v1/transactions", WRITE),
    Rule("POST", "/v1/transactions/begin", WRITE),
    Rule("GET", "/v1/transactions/{id}", WRITE),
    Rule("POST", "/v1/transactions/{id}/tables/{table}/rows", WRITE),
    Rule("POST", "/v1/transactions/{id}/commit", WRITE),
    Rule("POST", "/v1/transactions/{id}/abort", WRITE),
    # Operation
    Rule("POST", "/v1/checkpoints", ADMIN),
    Rule("POST", "/v1/pause", ADMIN),
    Rule("POST", "/v1/resume", ADMIN),
    Rule("POST", "/v1/views/{name}/retry", ADMIN),
)


def find_rule(rules: Iterable[Rule], method: str, path: str) -> Rule:
    """The strictest rule that matches."""
    method = "GET" if method == "HEAD" else method
    matches = [rule for rule in rules if rule.matches(method, path)]
    if not matches:
        return Rule(method, path, ADMIN)
    return max(matches, key=lambda rule: (not rule.is_restricted, rule.role or 0))
