"""From a storage to a running pipeline.

opening         restores, replays, evolves and completes
hydration       computes views from the content of their tables
divergence      evidence of diverged state, and the backoff of its recomputation
damaged_views   removes damaged views, so that they are computed again
storage_wait    retries the opening during a storage outage
"""
