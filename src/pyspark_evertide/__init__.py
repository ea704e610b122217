"""Where Spark looks for the format `evertide`: modules named `pyspark_*`, each with a `DefaultSource`.

So `spark.read.format("evertide")` works wherever Evertide is installed, without registering anything.
"""

from __future__ import annotations

from evertide.datasource.source import EvertideSource as DefaultSource

__all__ = ["DefaultSource"]
