"""Aggregates that a delta updates.

totals          the groups of an additive aggregate
group_plan      its functions over columns, without the plan and without state
accumulators    all aggregate functions of one aggregate
accumulator     the interface of one aggregate function
sums, moments   counts, sums, averages; variances, covariances and the like
extremes        min and max
exact, limbs    exact numbers, and exact sums of a delta
groups          groups of the rows of a delta
top             the first rows of a collection (top-k)
"""
