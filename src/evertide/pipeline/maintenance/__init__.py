"""Work beside the transactions: checkpoints, merging of state, garbage collection of a storage at rest."""
