"""Benchmarks: `python -m bench` (or `make bench`) prints ratios against a peer measured in the same run."""
