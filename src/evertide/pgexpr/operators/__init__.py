"""PostgreSQL's operators, functions and casts over batches of values, one module per kind of type."""
