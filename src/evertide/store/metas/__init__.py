"""Implementations of `Meta`: `sqlite` and `postgres` (with `timed_connection`); `sql` has what both share."""
