"""Shards: durable collections that several processes append to and read.

shard        `Shard` and `Shards`: the interface of the package
state        the state of a shard, and how a diff changes it (pure)
shard_log    the durable log of the state: read, compare-and-set, roll-up
append       appends, to one shard or several at once
read         windows, listings, fetches and snapshots
frontier     how far a reader has progressed (pure)
source       a shard as a stream of events
lease        a reader's claim on parts
hold         since and holds
compaction   merging batches
garbage      deleting parts, roll-ups and diffs that are not needed
inspect      a description of a shard for display
heartbeat    the thread that keeps the writer and the leases alive
maintenance  the thread that compacts and collects garbage
parts        the files of a shard
"""
