"""Where clauses: PostgreSQL's expressions, parsed, typed and computed here, for whole batches of rows; all of it pure.

`clause` is the face. What it says of a row is used by shapes, by what tokens are restricted to, and by other readers.
"""
