"""The connector `kafka`: topics as tables. `source` is its door."""
