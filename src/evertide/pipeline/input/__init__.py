"""The input of transactions.

open_sources      opens the sources that a script declares
input_reader      reads what sources offer for the next transaction
bound_rows        the rows of a bound transaction
pushes            the source of pushed rows
push_numbers      the number by which clients of shapes wait for a push
pushed_files      the rows of a pushed file
source_positions  the position of each source, also while its tables are not declared
"""
