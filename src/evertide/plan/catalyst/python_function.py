"""Describes a Python function by plain values that are the same in every process, for fingerprints.

A pickle is not enough: it has only the name of a module's function, the path and line numbers of a script's function,
and sets in any order. So the description covers, recursively:

1. the code of a function, its constants, defaults, closure and attributes, and the globals that it names;
2. all attributes of a class, so that a changed constant, static method or member of an Enum counts;
3. of a module of the user, the attributes that the function names.

Functions, classes and modules of Python or of installed packages are described by name. Names of variables, comments
and positions in the source do not count. Modules that a function imports in its body are described by name, too.

Bytecode differs between versions of Python, so the version is part of the description.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Set
from functools import cache, cached_property
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from pyspark.cloudpickle import CloudPickler

from evertide.errors import InvalidInput

_PLAIN = frozenset((str, int, float, complex, bool, type(None), type(Ellipsis)))
_NOT_COUNTED = frozenset(
    ("__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl")
)
"""Attributes of a class that are no part of its behaviour."""
_VALUES_MAX = 100_000
_HAS_DOCSTRING = 0x4000000
_HAS_FLAG = sys.version_info >= (3, 13)


def describe_function(function: Any, where: str) -> list[Any]:
    """Nested lists of strings and numbers."""
    return [f"python {sys.version_info[0]}.{sys.version_info[1]}", _Description(where).describe(function)]


class _Description:
    def __init__(self, where: str) -> None:
        self._where = where
        self._seen: dict[int, int] = {}
        """Numbers of the values seen so far, by identity, since functions may be recursive."""
        self._alive: list[Any] = []
        self._names: Set[str] = frozenset()
        """The names in the code of the function that is being described."""
        self._modules: set[tuple[Any, ...]] = set()
        """The modules described so far, each with the attributes."""

    def describe(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return [type(value).__name__, repr(value)]
        if type(value) in (bytes, bytearray):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, ModuleType):
            return self._describe_module(value)
        if id(value) in self._seen:
            return ["seen", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)  # ids of freed values are reused
        if len(self._seen) > _VALUES_MAX:
            raise InvalidInput(
                where=self._where,
                why=f"the Python function refers to more than {_VALUES_MAX:,} values; read them from a table",
            )
        return self._describe_parts(value)

    def _describe_parts(self, value: Any) -> Any:  # noqa: PLR0911 - per kind
        if isinstance(value, CodeType):
            return self._describe_code(value)
        if type(value) in (list, tuple):
            return [type(value).__name__, *map(self.describe, value)]
        if isinstance(value, set | frozenset):
            items = sorted(repr(_Description(self._where).describe(item)) for item in value)
            return ["set", *items, *([] if type(value) in (set, frozenset) else [self.describe(type(value))])]
        if type(value) is dict:
            return ["dict", *([self.describe(key), self.describe(item)] for key, item in value.items())]
        if isinstance(value, BuiltinFunctionType) or _is_installed(value):
            return ["named", f"{value.__module__}.{value.__qualname__}"]
        if isinstance(value, FunctionType):
            return self._describe_function(value)
        if isinstance(value, MethodType):
            return ["method", self.describe(value.__func__), self.describe(value.__self__)]
        return self._describe_class(value) if isinstance(value, type) else self._describe_object(value)

    def _describe_module(self, module: ModuleType) -> Any:
        """The attributes of a user's module that the function names."""
        used = sorted(self._names & vars(module).keys())
        if _is_installed_module(module.__name__) or not used or (id(module), *used) in self._modules:
            return ["module", module.__name__]
        self._modules.add((id(module), *used))
        return ["module", module.__name__, [[name, self.describe(vars(module)[name])] for name in used]]

    def _describe_function(self, function: FunctionType) -> Any:
        before, self._names = self._names, _list_names(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        used = sorted(self._names & function.__globals__.keys())
        found = [
            "function",
            self.describe(function.__code__),
            self.describe(function.__defaults__),
            self.describe(function.__kwdefaults__),
            self.describe(cells),
            [[name, self.describe(function.__globals__[name])] for name in used],
            *(self._describe_attribute(name, item) for name, item in sorted(vars(function).items())),
        ]
        self._names = before
        return found

    def _describe_code(self, code: CodeType) -> Any:
        flags = code.co_flags & ~_HAS_DOCSTRING
        arguments = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags]
        constants = list(code.co_consts)
        if _has_docstring(code):
            constants[0] = None
        return ["code", arguments, code.co_code.hex(), list(code.co_names), self.describe(constants)]

    def _describe_class(self, kind: type) -> Any:
        return [
            "class",
            kind.__qualname__,
            self.describe([type(kind), *kind.__bases__]),
            [
                self._describe_attribute(name, item)
                for name, item in sorted(vars(kind).items())
                if name not in _NOT_COUNTED and not isinstance(item, GetSetDescriptorType | MemberDescriptorType)
            ],
        ]

    def _describe_attribute(self, name: str, value: Any) -> Any:
        """Describe an attribute by its type if it cannot be pickled, as a lock."""
        try:
            return [name, self.describe(value)]
        except (InvalidInput, RecursionError):
            return [name, "type", type(value).__qualname__]

    def _describe_object(self, value: Any) -> Any:
        """Describe an object by what pickle stores: constructor, arguments, state."""
        if isinstance(value, property):
            return ["property", *map(self.describe, (value.fget, value.fset, value.fdel))]
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self.describe(value.__func__)]
        if isinstance(value, cached_property):
            return ["cached_property", self.describe(value.func)]
        reduce = CloudPickler.dispatch_table.get(type(value))
        try:
            parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:  # whatever a user's class raises when it is pickled
            why = f"the Python function refers to a {type(value).__qualname__}, which cannot be pickled: {error}"
            raise InvalidInput(where=self._where, why=why) from error
        if isinstance(parts, str):
            return ["named", f"{type(value).__module__}.{parts}", self.describe(getattr(value, "__wrapped__", None))]
        return ["object", *(self.describe(list(part) if hasattr(part, "__next__") else part) for part in parts)]


def _has_docstring(code: CodeType) -> bool:
    """Whether the first constant is a docstring; Python 3.13 and newer have a flag for it."""
    if _HAS_FLAG:
        return bool(code.co_flags & _HAS_DOCSTRING)
    return not code.co_name.startswith("<") and bool(code.co_consts) and isinstance(code.co_consts[0], str)


def _list_names(code: CodeType) -> set[str]:
    """Names of globals and attributes in the code, including inner functions."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _list_names(constant)
    return found


def _is_installed(value: Any) -> bool:
    """Whether a function or class of Python or an installed package can be found by its name."""
    if not isinstance(value, FunctionType | type):
        return False
    return "<locals>" not in value.__qualname__ and _is_installed_module(value.__module__)


@cache
def _is_installed_module(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    folders = [Path(sysconfig.get_path(path)).resolve() for path in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file is None or any(Path(file).resolve().is_relative_to(folder) for folder in folders)
