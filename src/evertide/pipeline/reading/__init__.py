"""Reading a pipeline's collections.

collections        tables and views as of a time
stale              warns of rows that stand at an earlier transaction, because their view failed
content            the rows of a collection, table by table
readable_rows      rows as Arrow, data frames, Python values, or printed
readable_pipeline  the calls of `Pipeline` that read
watching           rows in a cell of a notebook, updated after each transaction
reader             a storage as a process sees it that does not run the pipeline
query              queries and their results
"""
