"""From a storage to a running pipeline.

opening        restores, replays, evolves and completes
damaged_views  removes damaged views, so that they are computed again
storage_wait   retries the opening during a storage outage
"""
