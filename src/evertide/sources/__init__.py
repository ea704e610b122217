"""Sources: the input of a pipeline, one sub-package per connector.

contract   the interface between a source and the pipeline
registry   the connectors, and how the sources of a script are opened
staged     the format in which a source stages rows and faults
executors  work that a source runs on Spark's executors
values     conversion of user data to values of columns
files      CSV, JSON and Parquet files in a directory
generated  generators: datagen, Nexmark
kafka      topics
postgres   tables of a PostgreSQL database, by logical replication
"""
