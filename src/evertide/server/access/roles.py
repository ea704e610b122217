"""Which role each address needs: one table, and the only one.

1. What is not in it needs admin: an address that somebody adds and forgets here is closed, not open.
2. HEAD is as GET. If several lines fit an address, the highest role counts.
3. `is_restricted`: whether whoever serves it keeps to what a token is restricted to. Where it does not, a token with a
   restriction gets nothing.
4. Only shapes take a token from the address (`?secret=`), as Electric's clients send it: addresses end up in logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.routing import compile_path

from evertide.server.access.token import Role
from evertide.shapes.service import PATH as SHAPE

__all__ = ["ROLES", "SHAPE", "Rule", "rule_of"]

READ, WRITE, ADMIN = Role.READ, Role.WRITE, Role.ADMIN


@dataclass(frozen=True)
class Rule:
    method: str
    path: str
    """As a route has it."""
    role: Role | None
    """None: nobody is asked who he is."""
    is_restricted: bool = False

    @cached_property
    def _pattern(self) -> Any:
        return compile_path(self.path)[0]

    def fits(self, method: str, path: str) -> bool:
        return self.method == method and self._pattern.match(path) is not None


ROLES: tuple[Rule, ...] = (
    # The page, and what tells only that somebody is there
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
    # How the pipeline fares
    Rule("GET", "/v1/status", READ),
    Rule("GET", "/v1/graph", READ),
    Rule("GET", "/v1/journal", READ),
    Rule("GET", "/v1/errors", READ),
    Rule("GET", "/v1/events", READ),
    Rule("GET", "/v1/checkpoints", READ),
    Rule("GET", "/v1/transactions", READ),
    Rule("GET", "/metrics", READ),
    Rule("GET", "/v1/logs", ADMIN),
    # Rows in
    Rule("POST", "/v1/tables/{table}/rows", WRITE),
    Rule("POST", "/v1/transactions", WRITE),
    Rule("POST", "/v1/transactions/begin", WRITE),
    Rule("GET", "/v1/transactions/{id}", WRITE),
    Rule("POST", "/v1/transactions/{id}/tables/{table}/rows", WRITE),
    Rule("POST", "/v1/transactions/{id}/commit", WRITE),
    Rule("POST", "/v1/transactions/{id}/abort", WRITE),
    # Whoever runs it
    Rule("POST", "/v1/checkpoints", ADMIN),
    Rule("POST", "/v1/pause", ADMIN),
    Rule("POST", "/v1/resume", ADMIN),
)


def rule_of(rules: Iterable[Rule], method: str, path: str) -> Rule:
    """The strictest that fits."""
    asked = "GET" if method == "HEAD" else method
    found = [rule for rule in rules if rule.fits(asked, path)]
    if not found:
        return Rule(method, path, ADMIN)
    return max(found, key=lambda rule: (not rule.is_restricted, rule.role or 0))
