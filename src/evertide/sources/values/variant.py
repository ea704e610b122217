"""Convert a VARIANT to JSON with Spark's own code, which also wrote it."""

from __future__ import annotations

__all__ = ["variant_json"]


def variant_json(value: bytes, metadata: bytes) -> str:
    """Times inside the value are written in UTC."""
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - slow to import, and few tables have a VARIANT

    text: str = VariantVal(value, metadata).toJson("UTC")
    return text
