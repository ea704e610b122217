"""Evertide: incremental SQL views on Apache Spark that survive anything."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
