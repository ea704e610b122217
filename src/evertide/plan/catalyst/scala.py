"""Converts small Scala collections to Python's; each element takes a call to the JVM."""

from __future__ import annotations

from typing import Any

__all__ = ["mapping", "optional", "sequence"]


def sequence(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]


def optional(found: Any) -> Any | None:
    return found.get() if found.isDefined() else None


def mapping(found: Any) -> dict[str, str]:
    return {pair._1(): pair._2() for pair in sequence(found.toSeq())}
