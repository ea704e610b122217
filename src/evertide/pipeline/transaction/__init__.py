"""Transactions: bind, compute and commit.

runner         binds, computes, commits and replays transactions
portions       the outcome of a transaction, computed in portions
phases         the current phase, and the duration of each
damaged_state  discards the state that uses a damaged part
"""
