"""The connector `files`: reads each file of a directory once.

source      the source, and its options
directory   scans of the directory, and the position: which files were read
fragments   fragments, and the interface of the readers
text        reads text files: splits them at records
records     records of text files, block by block
csv         CSV records to rows
json_lines  JSON lines to rows
parquet     reads Parquet files
"""
