"""Makes `spark.read.format("evertide")` available wherever Evertide is installed.

Spark imports all modules named `pyspark_*` and registers the `DefaultSource` of each as a format.
"""

from __future__ import annotations

from evertide.datasource.source import EvertideSource as DefaultSource

__all__ = ["DefaultSource"]
