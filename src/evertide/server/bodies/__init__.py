"""Request bodies as rows, and their size in memory, known before they are decoded.

bodies        decoding
arrow_size    the decoded size of an Arrow stream
parquet_size  the decoded size of a Parquet file
text_size     the decoded size of JSON and CSV, estimated
thrift        Thrift's compact protocol, as far as Parquet uses it
"""
