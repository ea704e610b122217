"""The sink `postgres`: collections as tables of a PostgreSQL server, exactly once. `sink` is its door."""
