"""`ShapeDefinition`: which rows and columns of a collection a shape has, and how their changes are sent.

1. Two requests with the same meaning have equal definitions, however they are written, and share one shape.
2. `id` identifies the definition in handles and in storage. It is a cryptographic hash: a client that controls part of
   a request must not be able to collide with another client's shape.
3. The token's restriction is part of the definition: rows must match both it and the requested clause.
4. Rows are identified by the collection's key. Without a key, all columns identify a row, and equal rows are counted
   (`copies`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import Where, conjoin_both, parse_where
from evertide.pgexpr.restriction import UNRESTRICTED, Restriction
from evertide.pgexpr.types.texts import describe_column
from evertide.pipeline.definition import Definition, is_redefined_view
from evertide.pipeline.names import ERRORS
from evertide.pipeline.state.members import Members
from evertide.shapes.protocol.requests import Identifier, ShapeRequest, refuse_invalid, refuse_not_ready

SCHEMA = "public"
"""The only schema name."""


@dataclass(frozen=True)
class Subject:
    """A collection as shapes see it."""

    name: str
    shard: str
    schema: pa.Schema
    key: tuple[str, ...]
    """Empty if the collection has no key."""

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """The columns that form a row's key in messages, in order."""
        return self.key or tuple(sorted(self.schema.names))


@dataclass(frozen=True)
class ShapeDefinition:
    subject: Subject
    columns: tuple[str, ...]
    """In the collection's order."""
    where: Where | None
    """The requested clause and the restriction's clause together."""
    is_full: bool
    """Whether updates and deletes contain the whole row."""
    is_changes_only: bool
    restriction: str
    """The restriction's clause, which is part of `where`; empty if there is none."""
    request: ShapeRequest = field(compare=False, repr=False)
    """A request for this shape; resolved again if the collection is replaced."""

    @cached_property
    def canonical(self) -> str:
        """A text for other processes and for people; equal if and only if the definitions are equal."""
        schema = [[field.name, str(field.type), field.nullable] for field in self.subject.schema]
        facts = {
            "collection": self.subject.name,
            "schema": schema,
            "key": self.subject.key,
            "columns": self.columns,
            "where": self.where.canonical if self.where is not None else None,
            "replica": "full" if self.is_full else "default",
            "log": "changes_only" if self.is_changes_only else "full",
            # `positions`: earlier versions counted the rows of the whole collection; their handles end.
            **({"restriction": self.restriction, "positions": "own"} if self.restriction else {}),
        }
        return msgspec.json.encode(facts).decode()

    @cached_property
    def id(self) -> str:
        return hashlib.blake2b(self.canonical.encode(), digest_size=16).hexdigest()

    @cached_property
    def schema_header(self) -> str:
        """The header by which clients parse values."""
        schema, key = self.subject.schema, self.subject.key
        types = {name: describe_column(schema.field(name)) for name in self.columns}
        for at, name in enumerate(key):
            types[name] = {**types[name], "pk_index": at}
        return json.dumps(types, separators=(",", ":"))  # a header must be ASCII, whatever the column names

    @cached_property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns that must be read, in the collection's order."""
        wanted = {*self.columns, *self.subject.identity, *(self.where.columns if self.where is not None else ())}
        return tuple(name for name in self.subject.schema.names if name in wanted)


def resolve_subject(
    members: Members, table: tuple[Identifier, ...], restriction: Restriction = UNRESTRICTED
) -> Subject:
    """The collection that a request names. A restricted token cannot find out which others exist."""
    schema, name = (table[0], table[1]) if len(table) == 2 else (Identifier(SCHEMA), table[0])
    definition = members.definition
    known = [*definition.tables, *definition.views, ERRORS]
    collection = name.find_in(known) if schema.find_in([SCHEMA]) else None
    restriction.check(collection or name.name)
    if collection is None:
        shown = ".".join(f'"{one.name}"' for one in (schema, name))
        raise refuse_invalid(
            {"table": [f"Table {shown} does not exist. Names in quotes must have the case of the collection."]}
        )
    view = definition.views.get(collection)
    if view is not None and not view.shard:
        why = "the view is not hydrated yet"
        if view.away is not None and restriction.is_unrestricted:  # the reason may have values of other collections
            why = view.away.why
        raise refuse_not_ready(f"The view {collection!r} has no content yet: {why}")
    check_defined(definition, collection)
    try:
        shard = members.open_collection(collection)
    except InvalidInput as error:
        raise refuse_invalid({"table": [error.why]}) from error
    record = definition.tables.get(collection) or view
    key = () if record is None or record.key is msgspec.UNSET else tuple(record.key)
    return Subject(collection, shard.name, shard.schema, key)


def check_defined(definition: Definition, collection: str) -> None:
    """Refuse a view whose stored rows are those of another query than the declared one."""
    if is_redefined_view(definition, collection):
        raise refuse_not_ready(f"The query of the view {collection!r} changed, and the view is not computed yet")


def define_shape(subject: Subject, shape_request: ShapeRequest) -> ShapeDefinition:
    queryable = _resolve_columns(subject, shape_request.queryable, "queryable_columns")
    columns = _resolve_columns(subject, shape_request.columns, "columns")
    if queryable and columns and not set(columns) <= set(queryable):
        listed = ", ".join(name for name in columns if name not in queryable)
        raise refuse_invalid({"columns": [f"not in queryable_columns: {listed}"]})
    own = shape_request.restriction.clause(subject.name, subject.schema)
    return ShapeDefinition(
        subject=subject,
        columns=columns or queryable or tuple(subject.schema.names),
        where=conjoin_both(
            own, parse_where_parameter(subject.schema, shape_request.where, shape_request.params, "where")
        ),
        is_full=shape_request.is_full,
        is_changes_only=shape_request.is_changes_only,
        restriction=own.canonical if own is not None else "",
        request=shape_request,
    )


def parse_where_parameter(
    schema: pa.Schema, text: str, params: tuple[tuple[str, str], ...], parameter: str
) -> Where | None:
    if not text.strip():
        return None
    try:
        return parse_where(text, dict(params), schema)
    except InvalidInput as error:
        raise refuse_invalid({parameter: [error.why]}) from error


def _resolve_columns(subject: Subject, names: tuple[Identifier, ...], parameter: str) -> tuple[str, ...]:
    if not names:
        return ()
    resolved = {one: one.find_in(subject.schema.names) for one in names}
    missing = ", ".join(one.name for one, name in resolved.items() if name is None)
    if missing:
        raise refuse_invalid({parameter: [f"The following columns are not found on the table: {missing}"]})
    chosen = set(resolved.values())
    lacking = ", ".join(name for name in subject.key if name not in chosen)
    if lacking:
        raise refuse_invalid(
            {parameter: [f"The list of columns must include all primary key columns, missing: {lacking}"]}
        )
    return tuple(name for name in subject.schema.names if name in chosen)
