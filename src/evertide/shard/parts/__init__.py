"""The files of a shard.

part            encoding, decoding and verification of parts
statistics      ranges of columns, and the predicates that they can exclude
split           dividing the parts of a read into independent tasks (pure)
part_groups     reading the parts of one task
content_slices  reading the content of a shard in slices
"""
