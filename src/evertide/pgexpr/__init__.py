"""Parse, type-check and evaluate PostgreSQL expressions (where clauses) over batches of rows, without side effects.

`clause` is the entry point. Shapes, token restrictions and the server's endpoints for rows use it to select rows.
"""
