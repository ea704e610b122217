"""Arrangements: collections that are indexed by a key.

arrangement     an arrangement
spine           its runs, and how they are merged
runs, block     sorted runs of rows; rows in memory
merge           merges runs
keys, lookup    key words; the keys of one look-up
table_blocks    converts tables to blocks
state_part      the files that hold rows
part_reader     reads these files
row_groups      the cache of decoded row groups
manifest        what a checkpoint stores of an arrangement
"""
