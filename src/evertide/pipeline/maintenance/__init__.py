"""Checkpoints, and the maintenance of state.

checkpointer        makes checkpoints, and deletes what they make unnecessary
state_maintenance   merges state and collects garbage while transactions run
sweep               garbage collection of a storage whose pipeline does not run
"""
