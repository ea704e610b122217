"""From Catalyst's optimized plan to ours: operators, refusals, order, shared parts, fingerprints."""
