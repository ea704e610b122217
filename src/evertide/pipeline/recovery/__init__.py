"""From a storage to a running pipeline: restore, replay, hydrate, set damaged or diverged state aside."""
