"""The PostgreSQL sink: tables with the content of collections, written exactly once.

sink        the sink: open, write, errors
target      the table, and the table of transaction numbers: checks, creation
statements  the rows of a transaction, and the statement that applies them
types       column types and values
"""
