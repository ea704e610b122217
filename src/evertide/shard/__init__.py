"""Shards: durable collections that several processes append to and read. `evertide.shard.shard` is the way in."""
