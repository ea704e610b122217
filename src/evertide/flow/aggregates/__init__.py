"""Aggregates: accumulators that can be undone, exact sums, extremes, totals per group and top-k."""
