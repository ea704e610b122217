"""Converts small Scala collections to Python's; each element takes a call to the JVM."""

from __future__ import annotations

from typing import Any

__all__ = ["read_list", "read_map", "read_option"]


def read_list(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]


def read_option(found: Any) -> Any | None:
    return found.get() if found.isDefined() else None


def read_map(found: Any) -> dict[str, str]:
    return {pair._1(): pair._2() for pair in read_list(found.toSeq())}
