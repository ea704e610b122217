"""Queries that Spark answers once, and the functions that they may call."""
