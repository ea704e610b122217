"""The OPTIONS of a table, as its connector reads them (`evertide.options`)."""

from __future__ import annotations

from evertide import options
from evertide.sources.contract import TableDeclaration

__all__ = ["Options"]


class Options(options.Options):
    def __init__(self, declaration: TableDeclaration) -> None:
        where = f"{declaration.where}, table {declaration.name!r}"
        super().__init__(declaration.options, connector=declaration.connector, where=where)
