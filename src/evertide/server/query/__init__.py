"""Queries that are asked once, over all collections at one time: by HTTP, and by the command line."""
