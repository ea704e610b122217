"""Converts Catalyst expressions to plain values that are the same in every session, process and machine.

Catalyst's `toJSON` serializes an expression in one call, but it includes ids that differ between sessions and names
that the analyzer derives from them, and it omits fields that are not expressions, types or plain values. So:

1. An attribute becomes its label (its position in the input) or else, as for variables of lambda functions, a number
   in order of appearance.
2. Names of attributes, aliases and variables, qualifiers and ids of results are omitted: they do not change a result.
3. A field that is null in the JSON is read from the JVM: modes of arithmetic, sets, options, Python functions.
4. A literal whose text may be a memory address is written as SQL. SQL writes a variant as JSON, which does not have
   the type of each value, so literals with variants are written as the bytes of Spark's row format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from py4j.java_gateway import JavaObject, is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

from evertide.errors import InvalidInput
from evertide.plan.catalyst.python_function import describe_function
from evertide.plan.catalyst.walk import read_list, walk_parts

_LEFT_OUT = frozenset(("qualifier", "nonInheritableMetadataKeys", "resultId", "context", "queryContext", "origin"))
_NAMED = frozenset(("AttributeReference", "Alias", "NamedLambdaVariable"))
_PLAIN_LITERAL = re.compile(r"boolean|byte|short|integer|long|float|double|string.*|decimal.*|date|timestamp.*|void")
_ADDRESS = re.compile(r"@[0-9a-f]+\b")
_PYTHON_FUNCTION = "org.apache.spark.api.python.PythonFunction"


class CanonicalForms:
    def __init__(self, session: SparkSession, where: str) -> None:
        """`where` names the view or plan of the expressions, for messages."""
        self._gateway = session._sc._gateway
        self._where = where
        self._writers: dict[str, Callable[[Any], Any]] = {}

    def describe_expression(self, jvm: Any, labels: Mapping[int, Any]) -> Any:
        """Nested lists and dicts of strings and numbers."""
        return _Expression(self, jvm, labels).describe()

    def describe_rows(self, relation: Any) -> Any:
        """The rows of a LocalRelation."""
        if not relation.data().size():
            return ""
        if "variant" not in relation.schema().json():
            return relation.toSQL("rows")
        columns = [
            self._expressions.BoundReference(at, column.dataType(), column.nullable())
            for at, column in enumerate(read_list(relation.output()))
        ]
        return [self._write_row(columns, row) for row in read_list(relation.data())]

    def describe_literal(self, literal: Any) -> str:
        if "variant" not in literal.dataType().json():
            return str(literal.sql())
        return self._write_row([literal], self._gateway.jvm.org.apache.spark.sql.catalyst.InternalRow.empty())

    def _write_row(self, columns: list[Any], row: Any) -> str:
        """Expressions over a row, in Spark's row format. Py4J cannot call generated projections: they share a name."""
        seq = self._gateway.jvm.scala.jdk.javaapi.CollectionConverters.asScala(columns).toSeq()
        made = self._expressions.InterpretedUnsafeProjection.createProjection(seq)
        return bytes(made.apply(row).getBytes()).hex()

    @cached_property
    def _expressions(self) -> Any:
        return self._gateway.jvm.org.apache.spark.sql.catalyst.expressions

    def describe_field(self, value: Any) -> Any:
        """Convert a field of an expression that `toJSON` omits."""
        if not isinstance(value, JavaObject):
            return value.hex() if isinstance(value, bytes | bytearray) else value
        name = value.getClass().getName()
        if name not in self._writers:
            self._writers[name] = self._choose_writer(value, name)
        return self._writers[name](value)

    def _choose_writer(self, value: Any, name: str) -> Callable[[Any], Any]:
        """Choose how to convert values of a class, once per class, since it takes several calls to the JVM."""
        if name.endswith(("QueryContext", "AtomicReference")):
            return lambda _: None
        for kind, write in self._kinds.items():
            if is_instance_of(self._gateway, value, kind):
                return write
        return _write_text

    @cached_property
    def _kinds(self) -> dict[str, Callable[[Any], Any]]:
        return {
            _PYTHON_FUNCTION: self._describe_python,
            "scala.Enumeration$Value": lambda value: value.toString(),
            "java.lang.Class": lambda value: value.getName(),
            "scala.collection.Map": lambda value: sorted(self._write_all(value.toSeq()), key=json.dumps),
            "scala.collection.Set": lambda value: sorted(self._write_all(value.toSeq()), key=json.dumps),
            "scala.collection.Seq": self._write_all,
            "scala.Product": lambda value: [value.productPrefix(), *self._write_all(value.productIterator().toSeq())],
        }

    def _write_all(self, values: Any) -> list[Any]:
        return [self.describe_field(value) for value in read_list(values)]

    def _describe_python(self, function: Any) -> Any:
        """Describe a pickled Python function."""
        pickled = bytes(byte & 0xFF for byte in read_list(function.command()))
        try:
            command = CloudPickleSerializer().loads(pickled)
        except Exception as error:  # whatever a user's class raises when it is unpickled
            why = f"a Python function cannot be unpickled, so Evertide cannot detect changes of it: {error}"
            raise InvalidInput(where=self._where, why=why) from error
        return describe_function(command[0] if isinstance(command, tuple) else command, self._where)


class _Expression:
    """Converts one expression."""

    def __init__(self, canonical: CanonicalForms, jvm: Any, labels: Mapping[int, Any]) -> None:
        self._canonical = canonical
        self._jvm = jvm
        self._labels = labels
        self._numbers: dict[int, int] = {}
        self._parts: list[Any] | None = None

    def describe(self) -> Any:
        return [self._describe_node(at, found) for at, found in enumerate(json.loads(self._jvm.toJSON()))]

    def _describe_node(self, at: int, found: dict[str, Any]) -> Any:
        """`at` is the position in the expression, parents first; -1 inside a field, where it is unknown."""
        kind = found["class"].rpartition(".")[2]
        fields = {}
        for name, value in found.items():
            if name in _LEFT_OUT or (name == "name" and kind in _NAMED) or (name == "exprId" and kind == "Alias"):
                continue
            if name == "exprId":
                fields[name] = self._label(value["id"])
            elif value is None and kind != "Literal" and at >= 0:
                fields[name] = self._canonical.describe_field(self._read_field(at, name))
            elif kind == "Literal" and name == "value" and value is not None and not _has_stable_text(found):
                fields[name] = self._canonical.describe_literal(self._find_part(at)) if at >= 0 else None
            else:
                fields[name] = self._describe_field(value)
        return fields

    def _describe_field(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._describe_field(part) for part in value]
        if isinstance(value, dict) and "class" in value and "num-children" in value:
            return self._describe_node(-1, value)
        if isinstance(value, dict):
            return {
                name: self._describe_field(part) for name, part in value.items() if part is not None and name != "jvmId"
            }
        return value

    def _label(self, attribute: int) -> Any:
        if attribute in self._labels:
            return self._labels[attribute]
        return ["variable", self._numbers.setdefault(attribute, len(self._numbers))]

    def _find_part(self, at: int) -> Any:
        if self._parts is None:
            self._parts = list(walk_parts(self._jvm))
        return self._parts[at]

    def _read_field(self, at: int, name: str) -> Any:
        try:
            return getattr(self._find_part(at), name)()
        except Py4JError:  # the field is private, so it does not count
            return None


def _write_text(value: Any) -> Any:
    text = value.toString()
    return value.getClass().getName() if _ADDRESS.search(text) else text


def _has_stable_text(literal: dict[str, Any]) -> bool:
    return isinstance(literal["dataType"], str) and _PLAIN_LITERAL.fullmatch(literal["dataType"]) is not None
