"""Spark's JVM from Python: the session, Catalyst's operators and expressions, errors, network settings."""
