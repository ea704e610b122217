"""Parts of a shard: their files (`part`), statistics, and how a read splits them (`split`, `groups`, `pieces`)."""
