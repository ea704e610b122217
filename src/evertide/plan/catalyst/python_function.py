"""Describes a Python function by plain values that are the same in every process, for fingerprints.

A pickle is not enough: it has only the name of a module's function, the path and line numbers of a script's function,
and sets in any order. So the description covers the code, constants, defaults, closure, and the globals that the
function names, recursively. Modules, and objects of Python or of installed packages, are described by name. Names of
variables, comments and positions in the source do not count.

Bytecode differs between versions of Python, so the version is part of the description.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from evertide.errors import InvalidInput

__all__ = ["describe_function"]

_PLAIN = (str, int, float, complex, bool, type(None), type(Ellipsis))
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

    def describe(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        if isinstance(value, bytes | bytearray):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, ModuleType):
            return ["module", value.__name__]
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
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(self.describe, value)]
        if isinstance(value, set | frozenset):
            return ["set", *sorted(repr(_Description(self._where).describe(item)) for item in value)]
        if isinstance(value, dict):
            return ["dict", *([self.describe(key), self.describe(item)] for key, item in value.items())]
        if isinstance(value, BuiltinFunctionType) or _is_installed(value):
            return ["named", f"{value.__module__}.{value.__qualname__}"]
        if isinstance(value, FunctionType):
            return self._describe_function(value)
        if isinstance(value, MethodType):
            return ["method", self.describe(value.__func__), self.describe(value.__self__)]
        return self._describe_class(value) if isinstance(value, type) else self._describe_object(value)

    def _describe_function(self, function: FunctionType) -> Any:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        used = sorted(_list_names(function.__code__) & function.__globals__.keys())
        return [
            "function",
            self.describe(function.__code__),
            self.describe(function.__defaults__),
            self.describe(function.__kwdefaults__),
            self.describe(cells),
            [[name, self.describe(function.__globals__[name])] for name in used],
        ]

    def _describe_code(self, code: CodeType) -> Any:
        flags = code.co_flags & ~_HAS_DOCSTRING
        arguments = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags]
        constants = list(code.co_consts)
        if _has_docstring(code):
            constants[0] = None
        return ["code", arguments, code.co_code.hex(), list(code.co_names), self.describe(constants)]

    def _describe_class(self, kind: type) -> Any:
        found = {name: item.fget if isinstance(item, property) else item for name, item in vars(kind).items()}
        functions = sorted((name, item) for name, item in found.items() if isinstance(item, FunctionType))
        bases = [base for base in kind.__bases__ if base is not object]
        return [
            "class",
            kind.__qualname__,
            self.describe(bases),
            [[name, self.describe(item)] for name, item in functions],
        ]

    def _describe_object(self, value: Any) -> Any:
        """Describe an object by what pickle stores: constructor, arguments, state."""
        try:
            parts = value.__reduce_ex__(4)
        except TypeError as error:
            why = f"the Python function refers to a {type(value).__qualname__}, which cannot be pickled: {error}"
            raise InvalidInput(where=self._where, why=why) from error
        if isinstance(parts, str):
            return ["named", f"{type(value).__module__}.{parts}"]
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
