"""Fingerprints of single operators of a plan; `evertide.plan.program.fingerprint` defines what they cover."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from evertide.plan.algebra.nodes import Aggregate, Attribute, Map, PlanNode, Scan, TopK
from evertide.plan.catalyst.canonical import CanonicalForms
from evertide.plan.catalyst.walk import get_kind, read_list, walk_own_nodes

_FORMAT = 1
"""Increase it when the hashed content changes."""
_DIGEST_BYTES = 16


class NodeFingerprints:
    def __init__(
        self, canonical: CanonicalForms, settings: Mapping[str, str], views: Mapping[str, str], known: dict[int, str]
    ) -> None:
        self._canonical = canonical
        self._settings = hash_json(dict(settings))
        self._views = views
        self._known = known

    def hash_node(self, node: PlanNode) -> str:
        """Hash an operator, once. The caller keeps the node alive, since hashes are kept by its id."""
        if id(node) not in self._known:
            below = [self.hash_node(child) for child in node.children]
            types = [[attribute.type, attribute.nullable] for attribute in node.output]
            self._known[id(node)] = hash_json([self._settings, node.kind, self._describe(node), types, below])
        return self._known[id(node)]

    def _describe(self, node: PlanNode) -> Any:
        """The operator itself, without its inputs."""
        if isinstance(node, Scan):
            places = {attribute.id: at for at, attribute in enumerate(node.output)}
            key = [places[attribute] for attribute in node.unique]
            names = [attribute.name for attribute in node.output]
            return [node.collection, self._views.get(node.collection, ""), names, key]
        labels = _label_attributes(node)
        if isinstance(node, Aggregate) and node.is_additive:
            return _describe_additive(node, labels)
        if isinstance(node, Map) and node.is_rename_only:
            return [labels[node.passed[attribute]] for attribute in node.ids]
        inputs = [child.jvm for child in node.children]
        return [
            _describe_state(node, labels),
            [self._describe_operator(operator, labels) for operator in walk_own_nodes(node.jvm, inputs)],
        ]

    def _describe_operator(self, jvm: Any, labels: Mapping[int, Any]) -> Any:
        expressions = [] if get_kind(jvm) in ("LocalRelation", "Range") else read_list(jvm.expressions())
        texts = [self._canonical.describe_expression(expression, labels) for expression in expressions]
        facts = self._canonical.describe_rows(jvm) if get_kind(jvm) == "LocalRelation" else _describe_facts(jvm)
        return [get_kind(jvm), facts, texts]


def _label_attributes(node: PlanNode) -> dict[int, Any]:
    """A label for each attribute by its position in an input, or else in the output."""
    found: dict[int, Any] = {}
    for number, child in enumerate(node.children):
        for at, attribute in enumerate(child.ids):
            found.setdefault(attribute, [number, at])
    for at, attribute in enumerate(node.ids):
        found.setdefault(attribute, ["output", at])
    return found


def _describe_state(node: PlanNode, labels: Mapping[int, Any]) -> Any:
    """Facts that decide the operator's state and are not part of its Catalyst operators."""
    if isinstance(node, TopK) and node.first is not None:
        return node.first.limit
    return [labels[key] for key in node.keys] if isinstance(node, Aggregate) else None


def _describe_additive(node: Aggregate, labels: Mapping[int, Any]) -> Any:
    functions = [
        [
            function.name,
            [labels[argument] for argument in function.arguments],
            None if function.condition is None else labels[function.condition],
            function.mode,
            [_describe_type(attribute) for attribute in function.buffer],
        ]
        for function in node.functions
    ]
    return [[labels[key] for key in node.keys], functions]


def _describe_type(attribute: Attribute) -> list[Any]:
    return [attribute.type, attribute.nullable]


def _describe_facts(jvm: Any) -> Any:
    """Facts about a Catalyst operator that are not part of its expressions."""
    found = _FACTS.get(get_kind(jvm))
    return None if found is None else found(jvm)


_FACTS: dict[str, Callable[[Any], Any]] = {
    "Join": lambda jvm: get_kind(jvm.joinType()),
    "Sort": lambda jvm: bool(getattr(jvm, "global")()),
    "Generate": lambda jvm: [bool(jvm.outer()), read_list(jvm.unrequiredChildIndex())],
    "Expand": lambda jvm: jvm.projections().size(),
    "ArrowEvalPython": lambda jvm: int(jvm.evalType()),
    "Range": lambda jvm: [jvm.start(), jvm.end(), jvm.step()],
}


def hash_json(text: Any) -> str:
    written = json.dumps([_FORMAT, text], separators=(",", ":"), sort_keys=True)
    return blake2b(written.encode(), digest_size=_DIGEST_BYTES).hexdigest()
