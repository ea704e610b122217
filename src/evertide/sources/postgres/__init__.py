"""The connector `postgres`: reads tables of a PostgreSQL server by logical replication.

connector     the options, and the name of a table's source
source        the source: offers, reads, status
receiver      the thread that creates slot and snapshot and follows the stream
session       one replication stream, from start to end, and its connection
messages      messages of the stream
batches       many messages at once
transactions  messages to committed transactions, staged in fragments
rows          changes of one table to staged rows
ready_queue   staged transactions that wait to be bound
snapshot      the initial content of the tables
catalog       checks of the server, its tables and the publication
partitions    changes of partitions that the stream does not show
slot_monitor  the server's position and the state of the slot
server        connections, slot and publication
positions     positions of the source
types         column types and values
"""
