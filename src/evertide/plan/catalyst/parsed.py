"""Finds the operators inside of an operator of a parsed plan, wherever they are.

In a plan that Spark has only parsed, some subqueries are not among `children` and `subqueries`: those of SET in pipe
syntax are in a list inside of an expression without children, those of WINDOW in a map, and those of FILTER after
IDENTIFIER() in a function. So all values that an operator holds are searched (`ParsedParts.java`), and a value of an
unknown kind is reported. Spark's compiler for generated code compiles that class at first use, so there is no jar to
build or install.

An analyzed plan needs no such search: Spark resolved each of its operators, and computes it, as a child or a subquery.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from importlib.resources import files
from typing import Any


def find_inner_plans(plan: Any) -> tuple[list[Any], list[str]]:
    """The operators directly inside of an operator, children first, and the class names of unknown values in it."""
    found = load_class(plan, "evertide.plan.catalyst", "ParsedParts").newInstance().find(plan)
    return [each for each in found if not isinstance(each, str)], [each for each in found if isinstance(each, str)]


def walk_parsed(plan: Any) -> Iterator[Any]:
    """All operators of a parsed plan, parents first."""
    yield plan
    for inner in find_inner_plans(plan)[0]:
        yield from walk_parsed(inner)


_compiling = threading.Lock()
_compiled: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The classes by name, by the client of a JVM."""


def load_class(jvm_object: Any, package: str, name: str) -> Any:
    """A class in Spark's JVM.

    It is compiled once, since py4j finds methods by the name of a class. `jvm_object` is any object of that JVM whose
    class is one of Spark's; `package` has the source.
    """
    with _compiling:
        known = _compiled.setdefault(jvm_object._gateway_client, {})
        if name not in known:
            loader = jvm_object.getClass().getClassLoader()
            compiler = loader.loadClass("org.codehaus.janino.SimpleCompiler").newInstance()
            compiler.setParentClassLoader(loader)
            compiler.cook(files(package).joinpath(f"{name}.java").read_text("utf-8"))
            known[name] = compiler.getClassLoader().loadClass(f"evertide.{name}")
        return known[name]
