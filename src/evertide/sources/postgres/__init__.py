"""The connector `postgres`: tables of a PostgreSQL server, by logical replication. `connector` is its door."""
