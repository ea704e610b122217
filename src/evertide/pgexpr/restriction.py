"""`Restriction`: what somebody may see of the collections, whatever he asks for.

1. Either all of them, as they are; or those that are named, each as a whole or the rows of which a clause is true. A
   collection that is not named is not there for him: also a view over one that is.
2. The clause is parsed by itself, with no parameters, and put beside what was asked for as an expression, never as
   text: nothing that a request holds can reach into it.
3. A clause that cannot be applied (its column is gone) lets nothing through.
4. It is part of a shape's definition: who is restricted in another way has another shape, and another handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evertide.errors import Forbidden, InvalidInput
from evertide.pgexpr.clause import Where, parse_where
from evertide.pgexpr.syntax import parsed

__all__ = ["NOTHING", "UNRESTRICTED", "Restriction", "restriction_in"]

_STATE = "restriction"


@dataclass(frozen=True, slots=True)
class Restriction:
    """Names are in lower case: collections are told apart by more than that."""

    collections: frozenset[str] | None = None
    """None: all."""
    where: tuple[tuple[str, str], ...] = ()

    @classmethod
    def to(cls, where: Mapping[str, str], collections: frozenset[str] | None) -> Restriction:
        """Who has clauses sees the collections that they are of, unless others are named beside them."""
        clauses = {name.lower(): text for name, text in where.items()}
        if len(clauses) < len(where):
            raise InvalidInput(where="where", why="a collection is named twice, in another case")
        if collections is None and clauses:
            return cls(frozenset(clauses), tuple(sorted(clauses.items())))
        named = None if collections is None else frozenset(name.lower() for name in collections)
        stray = sorted(set(clauses) - (named or set()))
        if stray:
            raise InvalidInput(where=f"where of {stray[0]!r}", why="it is not among the collections that are named")
        return cls(named, tuple(sorted(clauses.items())))

    @property
    def is_free(self) -> bool:
        return self.collections is None

    def check_syntax(self) -> None:
        """Of the clauses, before any collection is there. `InvalidInput` if one is none."""
        for name, text in self.where:
            try:
                parsed(text)
            except InvalidInput as error:
                raise InvalidInput(where=f"where of {name!r}", why=error.why) from error

    def allows(self, collection: str) -> bool:
        return self.collections is None or collection.lower() in self.collections

    def check(self, collection: str) -> None:
        """Whether there is such a collection is not told."""
        if not self.allows(collection):
            raise Forbidden(where=f"collection {collection!r}", why="the token is for other collections")

    def clause(self, collection: str, schema: pa.Schema) -> Where | None:
        """What must be true of each row that is shown; None: nothing. `Forbidden` if there is no telling."""
        self.check(collection)
        text = dict(self.where).get(collection.lower())
        if text is None:
            return None
        try:
            return parse_where(text, {}, schema)
        except InvalidInput as error:
            why = f"the token's where clause does not fit the collection: {error.why}"
            raise Forbidden(where=f"collection {collection!r}", why=why) from error

    def put_in(self, state: dict[str, Any]) -> None:
        """Into the state of a request, for whoever serves it."""
        state[_STATE] = self


UNRESTRICTED = Restriction()
NOTHING = Restriction(frozenset())


def restriction_in(scope: Mapping[str, Any]) -> Restriction:
    """Of whoever sent the request. Where no gate stands in front, all may see everything."""
    found: Restriction = scope.get("state", {}).get(_STATE, UNRESTRICTED)
    return found
