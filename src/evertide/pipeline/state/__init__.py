"""The state of a pipeline between two transactions, and its step from one to the next.

machine         the state of tables and views, and its step
table_deltas    the deltas of tables
table_input     the input of one table in a transaction
members         the shards of a definition
hydration       computes state from the content of the shards
wide_hydration  the same, by executors
divergence      evidence of diverged state, and the backoff of its recomputation
"""
