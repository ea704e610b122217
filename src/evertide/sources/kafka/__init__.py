"""The connector `kafka`: reads the records of a topic as rows of a table.

source           the source: offers, reads, errors
options          the options
positions        positions and fragments
fetch            fetches new records, and bound records again
spread           reads ranges of offsets on Spark's executors
rows             records to rows, by envelope
formats          bytes of keys and values: JSON, Avro, CSV, text
debezium         Debezium's envelope
unavailable      placeholders for values that Debezium omits
json_batch       many JSON records at once
schema_registry  schemas of Avro records, and those whose data are unbounded
"""
