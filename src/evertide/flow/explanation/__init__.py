"""How each operator of a circuit is maintained: `explain`, its answer, and diagrams of it."""
