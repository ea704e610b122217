"""Connectors that make rows from a seed: `datagen` and `nexmark`."""
