"""Fragments of a plan, ready to run: over few rows in one call (`local_runner`), over many on the executors."""
