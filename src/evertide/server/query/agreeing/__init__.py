"""What DuckDB and Spark mean alike: questions that either may answer, in words that both understand the same."""

from evertide.server.query.agreeing.question import agreed

__all__ = ["agreed"]
