"""Compiles a class that is written in Java, at first use, by Spark's compiler for generated code.

So there is no jar to build or install.
"""

from __future__ import annotations

import threading
import weakref
from importlib.resources import files
from typing import Any

__all__ = ["load_class"]

_compiling = threading.Lock()
_compiled: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The classes by name, by the client of a JVM."""


def load_class(near: Any, package: str, name: str) -> Any:
    """A class in Spark's JVM.

    It is compiled once, since py4j finds methods by the name of a class. `near` is any object of that JVM whose class
    is one of Spark's; `package` has the source.
    """
    with _compiling:
        known = _compiled.setdefault(near._gateway_client, {})
        if name not in known:
            loader = near.getClass().getClassLoader()
            compiler = loader.loadClass("org.codehaus.janino.SimpleCompiler").newInstance()
            compiler.setParentClassLoader(loader)
            compiler.cook(files(package).joinpath(f"{name}.java").read_text("utf-8"))
            known[name] = compiler.getClassLoader().loadClass(f"evertide.{name}")
        return known[name]
