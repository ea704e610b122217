"""Checkpoints: durable, complete, verifiable copies of the state. `evertide.checkpoint.catalog` is the way in."""
