"""Wide steps: views computed from scratch by executors, which read and write the rows; the driver handles names.

step        one wide step: the operators of a circuit in order, each as one or two jobs
pieces      stored rows, each piece read by one task
outlets     what a task makes of the rows that it computes
groups      the groups of an additive aggregate, from the partial sums of tasks
tasks       the bodies of tasks
"""
