"""Convert user data to values of columns: exactly, or refused with the row, the column and the reason.

values       one value
columns      whole columns, with the same result
fit          columns to rows of a table: NOT NULL, the key, defaults, faults
rows         a push to rows of a table
defaults     constants after DEFAULT
kinds        names and descriptions of types, for messages
strict_json  JSON without repeated names
variant      VARIANT to JSON
"""
