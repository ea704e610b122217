"""Convert user data to values of columns: exactly, or refused with the row, the column and the reason.

values       one value; constants after DEFAULT
columns      whole columns, with the same result
fit          columns to rows of a table: NOT NULL, the key, defaults, faults
rows         a push to rows of a table
kinds        names and descriptions of types, for messages; VARIANT to JSON
strict_json  JSON without repeated names
"""
