"""PostgreSQL's types: which columns have them, how Arrow represents their values, and how they are written.

sqltypes        the types, and the mapping from column types to them
columns         converts Arrow columns to the values that clauses compute with
calendar        date, timestamp and interval arithmetic
value_text      writes a value
texts           describes and writes columns, for shapes
"""
