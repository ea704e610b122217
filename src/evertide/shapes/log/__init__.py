"""Shapes as they are kept and followed: their records, their snapshots, and their logs, made of the shards' changes."""
