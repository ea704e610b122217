"""Arrangements: collections that are indexed by a key.

arrangement  an arrangement, its look-ups, and what a checkpoint stores of it
spine        its runs, and how they are merged
runs, block  sorted runs of rows; rows in memory, converted from tables
merge        merges runs
key_words    key words
state_part   the files that hold rows
part_reader  reads these files
row_groups   the cache of decoded row groups
"""
