"""Fragments of a plan, ready to run: over few rows in one call (`small`), over many on the executors."""
