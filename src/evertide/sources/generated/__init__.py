"""Sources that generate their rows: the connectors `datagen` and `nexmark`.

datagen         rows of any table
nexmark         the streams of the Nexmark benchmark
nexmark_events  the benchmark's events, by number
random_columns  columns of any type, by row number
series          positions, fragments and offers of numbered rows, and rows per second
seeded          pseudo-random numbers
"""
