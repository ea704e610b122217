"""Several processes on one storage: who leads, what the leader does, how followers keep up, and liveness."""
