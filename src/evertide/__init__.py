"""Evertide: incremental SQL views on Apache Spark.

    import evertide as et

    with et.Pipeline.open("shop.sql", storage="./shop.evertide") as p:
        p.push("orders", [{"id": 1, "amount": 20}])
        p.commit()
        p.view("revenue").to_arrow()

The names below are imported at first use, so that a process that only reads a shard does not load Spark.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from evertide.errors import EvertideError
    from evertide.pipeline.pipeline import Pipeline
    from evertide.pipeline.reading.collections import View
    from evertide.pipeline.reading.stale import StaleViewWarning
    from evertide.plan.program.view_function import materialized_view, temporary_view
    from evertide.settings import Settings

__all__ = [
    "EvertideError",
    "Pipeline",
    "Settings",
    "StaleViewWarning",
    "View",
    "__version__",
    "materialized_view",
    "temporary_view",
]

from evertide.version import __version__

_WHERE = {
    "EvertideError": "evertide.errors",
    "Pipeline": "evertide.pipeline.pipeline",
    "Settings": "evertide.settings",
    "StaleViewWarning": "evertide.pipeline.reading.stale",
    "View": "evertide.pipeline.reading.collections",
    "materialized_view": "evertide.plan.program.view_function",
    "temporary_view": "evertide.plan.program.view_function",
}


def __dir__() -> list[str]:
    """What an editor or a notebook completes."""
    return __all__


def __getattr__(name: str) -> _Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(_WHERE[name]), name)
