"""Parse, type-check and evaluate PostgreSQL expressions (where clauses) over batches of rows, without side effects.

clause          a where clause: the entry point, for shapes, token restrictions and the endpoints for rows
restriction     the collections and rows that the holder of a token may see
tokens, syntax  split a clause into tokens, and parse it
resolution      chooses the operation of each node
coercion        implicit type conversion
literals        reads texts as values of a type
expressions     typed expressions, and their evaluation over batches
operators       the operations, by kind of type
types           PostgreSQL's types, and how values are written
"""
