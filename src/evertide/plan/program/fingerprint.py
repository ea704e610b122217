"""Fingerprints: hashes that are equal only for plans that compute the same, in any session, process or machine.

An operator may reuse stored state only if that was stored under its own fingerprint. Two plans with different
fingerprints may still compute the same. The fingerprint of an operator covers:

1. its kind, its expressions, and the types of its columns;
2. the fingerprints of its inputs. A column of an input is identified by its position, not by the ids and names that
   Spark generates. A table is identified by its name, its columns with types, and its key;
3. the name and the fingerprint of a materialized view that it reads;
4. Spark's version, and every setting that can change a result (`evertide.plan.catalyst.result_settings`).

The fingerprint of a view adds the names of its columns, and the types by which CHAR columns are compared; that of a
pipeline covers all tables, flows and views. Space, comments, the case of keywords and names of inner columns do not
change a fingerprint.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

from evertide.plan.algebra.node_fingerprints import NodeFingerprints, hash_json
from evertide.plan.catalyst.canonical import CanonicalForms
from evertide.plan.catalyst.result_settings import read_result_settings
from evertide.plan.program.program import Program
from evertide.plan.script.statements import FlowStatement, TableStatement


class Fingerprints:
    """The fingerprints of a program: of its `views` by name, of the whole `pipeline`, and of all `nodes`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._settings = read_result_settings(program.catalog.session)
        self.nodes: dict[int, str] = {}
        """By the id of an operator of a view."""
        self.views: dict[str, str] = {}
        for name, plan in program.views.items():
            canonical = CanonicalForms(program.catalog.session, f"view {name!r}")
            found = NodeFingerprints(canonical, self._settings, self.views, self.nodes).hash_node(plan)
            facts = ["view", [attribute.name for attribute in plan.output], found]
            compared = program.compared_types[name]
            self.views[name] = hash_json([*facts, compared] if compared else facts)

    @cached_property
    def pipeline(self) -> str:
        declared: dict[str, Any] = {}
        for statement in self._program.statements:
            match statement:
                case TableStatement():
                    columns = [
                        [each.name, each.declared_type or each.type, each.nullable, each.default]
                        for each in statement.columns
                    ]
                    declared[statement.name] = ["table", columns, list(statement.key), statement.is_streaming]
                case FlowStatement():
                    facts = asdict(statement)
                    del facts["where"]
                    declared[statement.name] = ["flow", facts]
        return hash_json(["pipeline", self._settings, sorted(declared.items()), sorted(self.views.items())])
