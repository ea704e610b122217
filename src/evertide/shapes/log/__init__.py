"""Shape records, snapshots and logs, derived from the shards' changes."""
