"""Benchmarks: `python -m bench` (or `make bench`) prints ratios against a peer measured in the same run.

measure                     alternating rounds, and the figures of the report
shards, pipelines, views    the cost of durability; restart and replay; the refresh of a view (`bounds`: worst cases)
sizing                      bytes, commits and memory per million rows and per view
connectors, orders          Kafka and PostgreSQL; their rows (`bare_consumers`: consumers that only decode, as the peer)
shapes, shape_clients       latency, clients and changes of shapes (`shape_index`: matching alone); the client process
replicas, bulk              takeover, the cost of a follower, a second executor; a bulk load on a Spark cluster
peers                       Evertide compared with other engines
"""
