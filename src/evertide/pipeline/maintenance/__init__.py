"""Checkpoints, and the maintenance of state.

checkpointer        makes checkpoints, and deletes what they make unnecessary
state_maintenance   merges and verifies state and collects garbage while transactions run
scrub               reads the state parts in use, and compares them with their checksums
sweep               garbage collection of a storage whose pipeline does not run
"""
