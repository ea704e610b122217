"""Request bodies as rows, and their size in memory, known before they are decoded.

bodies        decoding; the decoded size of JSON and CSV, estimated
arrow_size    the decoded size of an Arrow stream
parquet_size  the decoded size of a Parquet file
"""
