"""The row algebra: rows with a diff, and the functions over them.

changes      rows with a time and a diff, and their consolidation
digest       the digest of a set of changes; bit-exact equality of rows and values
conform      conversion of columns to the types of a shard
columns      Arrow columns as numpy arrays
slices       rows distributed over files by hash or time
char_types   CHAR and VARCHAR: declared types of columns, and the texts that fit them
utf8         replaces or detects invalid UTF-8 in text columns
python_rows  rows as Python values
frames       rows as data frames of pandas, polars and Spark
"""
