"""V8: a change of anything that a Python function computes with changes its description, and so its fingerprint."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from evertide.plan.catalyst.python_function import describe_function

ENUM = "from enum import {0}\nclass C({0}):\n  A = {1}\ndef f(x): return C.A.value"
CACHED = "import functools\n@functools.lru_cache\ndef g(x): return {}\ndef f(x): return g(x)"
TUPLE = "from collections import namedtuple\nP = namedtuple('P', '{}')\ndef f(x): return P(x, 2).a"
VALUES = {
    "constant": "class C:\n  V = {}\ndef f(x): return C.V",
    "constant of a base": "class B:\n  V = {}\nclass C(B): pass\ndef f(x): return C.V",
    "static method": "class C:\n  @staticmethod\n  def g(x): return {}\ndef f(x): return C.g(x)",
    "class method": "class C:\n  @classmethod\n  def g(cls, x): return {}\ndef f(x): return C.g(x)",
    "property": "class C:\n  @property\n  def g(self): return {}\ndef f(x): return C().g",
    "cached property": "from functools import cached_property\nclass C:\n  @cached_property\n  def g(self): return {}\n"
    "def f(x): return C().g",
    "metaclass": "class M(type):\n  def __call__(cls): return {}\nclass C(metaclass=M): pass\ndef f(x): return C()",
    "descriptor": "class D:\n  def __init__(self, v): self.v = v\n  def __get__(self, i, o): return self.v\n"
    "class C:\n  a = D({})\ndef f(x): return C.a",
    "abstract class": "from abc import ABC\nclass C(ABC):\n  V = {}\ndef f(x): return C.V",
    "beside a lock": "import threading\nclass C:\n  L = threading.Lock()\n  V = {}\ndef f(x): return C.V",
    "subclass of dict": "class C(dict):\n  def __missing__(self, key): return {}\nP = C()\ndef f(x): return P[x]",
    "subclass of set": "class C(set):\n  V = {}\nP = C('ab')\ndef f(x): return P.V",
    "subclass of str": "class C(str):\n  V = {}\nP = C('a')\ndef f(x): return P.V",
    "default of a dict": "from collections import defaultdict\nP = defaultdict(lambda: {})\ndef f(x): return P[x]",
    "attribute of a function": "def g(x): pass\ng.k = {}\ndef f(x): return g.k",
    "mapping": "from types import MappingProxyType\nP = MappingProxyType({{1: {}}})\ndef f(x): return P[x]",
    "pattern": "import re\nP = re.compile('{}')\ndef f(x): return P.match(x)",
}


def describe(source: str, module: ModuleType | None = None) -> Any:
    """Describe the function `f` of a user's script, as a script that is read again defines it."""
    names = {"__name__": "script", "helpers": module}
    exec(source, names)
    return describe_function(names["f"], "here")


@pytest.mark.parametrize("source", VALUES.values(), ids=VALUES)
def test_v8_a_changed_value_changes_the_description(source: str) -> None:
    assert describe(source.format(1)) == describe(source.format(1))
    assert describe(source.format(1)) != describe(source.format(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((ENUM.format(kind, 1), ENUM.format(kind, 2)) for kind in ("Enum", "IntEnum", "IntFlag")),
        (ENUM.format("Enum", 1), ENUM.replace("C.A", "C.B").replace("A =", "B =").format("Enum", 1)),
        (CACHED.format(1), CACHED.format(2)),
        (TUPLE.format("a b"), TUPLE.format("b a")),
    ],
)
def test_v8_a_changed_class_changes_the_description(one: str, other: str) -> None:
    assert describe(one) == describe(one)
    assert describe(one) != describe(other)


def test_v8_a_module_of_the_user_counts_as_far_as_the_function_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("helpers")
    module.__file__ = "/scripts/helpers.py"
    monkeypatch.setitem(sys.modules, "helpers", module)

    def describe_with(source: str) -> Any:
        exec(source, vars(module))
        return describe("def f(x): return helpers.g(x)", module)

    before = describe_with("def g(x): return x + K\nK = 1\ndef other(): return 1")
    assert describe_with("def other(): return 2") == before
    assert describe_with("K = 2") != before
    assert describe_with("K = 1") == before
    assert describe_with("def g(x): return x - K") != before
