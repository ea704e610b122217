"""`Restriction`: the collections, and the rows of them, that a token's holder may see.

1. A restriction allows either all collections, or the named ones; of a named collection it allows all rows, or those
   for which a clause is true. A collection that is not named is invisible, even if it is a view over one that is.
2. The clause is parsed on its own, without parameters, and combined with the request's clause as an expression, never
   as text: nothing in a request can change its meaning.
3. A clause that cannot be applied (its column is gone) allows no rows.
4. An error of the storage shows no path to a restricted token, and no name of another collection.
5. The restriction is part of a shape's definition: two tokens with different restrictions have different shapes and
   handles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.errors import EvertideError, Forbidden, InvalidInput, LimitExceeded, Unauthorized
from evertide.json_values import error_to_json
from evertide.pgexpr.clause import Where, parse_where
from evertide.pgexpr.syntax import parse_clause

_STATE = "restriction"
_OF_REQUESTS = (InvalidInput, LimitExceeded, Unauthorized, Forbidden)
"""Errors that describe a request."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """Names are in lower case: no two collections differ only in case."""

    collections: frozenset[str] | None = None
    """None: all collections."""
    where: tuple[tuple[str, str], ...] = ()

    @classmethod
    def to(cls, where: Mapping[str, str], collections: frozenset[str] | None) -> Restriction:
        """With clauses and no `collections`, the collections that have clauses are allowed."""
        clauses = {name.lower(): text for name, text in where.items()}
        if len(clauses) < len(where):
            raise InvalidInput(where="where", why="the names of two collections differ only in upper and lower case")
        if collections is None and clauses:
            return cls(frozenset(clauses), tuple(sorted(clauses.items())))
        named = None if collections is None else frozenset(name.lower() for name in collections)
        stray = sorted(set(clauses) - (named or set()))
        if stray:
            raise InvalidInput(
                where=f"where of {stray[0]!r}",
                why="the token cannot read this collection; add the collection to 'collections'",
            )
        return cls(named, tuple(sorted(clauses.items())))

    @property
    def is_unrestricted(self) -> bool:
        return self.collections is None

    def check_syntax(self) -> None:
        """Raises `InvalidInput` for a malformed clause. Needs no collection."""
        for name, text in self.where:
            try:
                parse_clause(text)
            except InvalidInput as error:
                raise InvalidInput(where=f"where of {name!r}", why=error.why) from error

    def allows(self, collection: str) -> bool:
        return self.collections is None or collection.lower() in self.collections

    def check(self, collection: str) -> None:
        """Raises the same error whether or not the collection exists."""
        if not self.allows(collection):
            raise Forbidden(where=f"collection {collection!r}", why="the token allows other collections only")

    def clause(self, collection: str, schema: pa.Schema) -> Where | None:
        """The clause that visible rows must match; None for all rows. Raises `Forbidden` if it cannot be applied."""
        self.check(collection)
        text = dict(self.where).get(collection.lower())
        if text is None:
            return None
        try:
            return parse_where(text, {}, schema)
        except InvalidInput as error:
            why = f"the token's where clause does not fit the collection: {error.why}"
            raise Forbidden(where=f"collection {collection!r}", why=why) from error

    def error_json(self, error: EvertideError) -> dict[str, Any]:
        """The JSON of an error (rule 4)."""
        whole = error_to_json(error)
        if self.is_unrestricted or isinstance(error, _OF_REQUESTS):
            return whole
        numbers = {name: value for name, value in whole.items() if isinstance(value, int)}
        return {"error_code": error.error_code, "message": error.summary, "remedy": error.remedy, **numbers}

    def put_in(self, state: dict[str, Any]) -> None:
        """Put the restriction into the state of a request, for the endpoint that serves it."""
        state[_STATE] = self


UNRESTRICTED = Restriction()
NOTHING = Restriction(frozenset())


def read_restriction(scope: Mapping[str, Any]) -> Restriction:
    """The restriction of a request. Without a gate in front, requests are unrestricted."""
    restriction: Restriction = scope.get("state", {}).get(_STATE, UNRESTRICTED)
    return restriction
