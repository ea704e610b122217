"""Transactions: bind, compute and commit.

loop          makes transactions until the pipeline stops
advancer      makes the next transaction, or replays a peer's
runner        binds, computes, commits and replays transactions
machine       the state of tables and views, and its step
portions      the outcome of a transaction, computed in portions
table_input   the input of one table in a transaction
table_deltas  the deltas of tables
members       the shards of a definition
phases        the current phase, and the duration of each
"""
