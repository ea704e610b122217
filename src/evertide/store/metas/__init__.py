"""Implementations of `Meta`: `sqlite` and `postgres` (with `timed_connection`); `pool` serves both."""
