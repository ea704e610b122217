"""One module per group of addresses: collections, rows, pushes, transactions, queries, status, events."""
