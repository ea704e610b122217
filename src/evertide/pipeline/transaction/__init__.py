"""Transactions: bind, compute and commit.

loop      makes transactions until the pipeline stops
advancer  makes the next transaction, or replays a peer's
runner    binds, computes, commits and replays transactions
portions  the outcome of a transaction, computed in portions
phases    the current phase, and the duration of each
"""
