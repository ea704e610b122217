"""Implementations of `Meta`: SQLite and PostgreSQL, with connection pools (`pool`) and turns per key (`turns`)."""
