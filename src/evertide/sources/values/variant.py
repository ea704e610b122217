"""A VARIANT as JSON: read by Spark's own code, as that is what wrote it."""

from __future__ import annotations

__all__ = ["variant_json"]


def variant_json(value: bytes, metadata: bytes) -> str:
    """Times of day and zone in it are UTC."""
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - slow to import, and few tables have a VARIANT

    text: str = VariantVal(value, metadata).toJson("UTC")
    return text
