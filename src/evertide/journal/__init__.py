"""The journal: the durable record of which input each transaction has.

journal    `Journal`: the interface that the pipeline uses, and checks of input that is about to be bound
records    the records: `Bound`, `Committed` and their parts
staging    staged rows: input that its source cannot send again
producers  the last sequence number of each producer
xids       the upstream transactions that each transaction contains
replay     comparison of a replay with the records
time_log   `TimeLog`: one record per transaction under one Meta key
garbage    deletion of old records and of staged rows
"""
