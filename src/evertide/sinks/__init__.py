"""Sinks: the targets that collections are written to, one module or sub-package per connector.

contract       the interface between a sink and the pipeline
registry       the connectors, and how the sinks of a script are prepared
delta          Delta tables
delta_rewrite  large transactions with removed rows, by files that are replaced
delta_files    the files of a Delta table, and their rows
files          Parquet files of changes
kafka          topics
postgres       tables of a PostgreSQL database
webhook        HTTP requests
json_rows      rows as JSON values
"""
