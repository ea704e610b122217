"""The sink `kafka`: collections as topics, exactly once. `sink` is its door."""
