"""Implementations of `Meta`: `sqlite` and `postgres` (with `timed_connection`); `pool` and `fifo_lock` serve them."""
