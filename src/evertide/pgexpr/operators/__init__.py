"""PostgreSQL's operators, functions and casts over batches of values, one module per kind of type.

arithmetic, temporal    numbers; dates, times and intervals
comparison, logic       comparisons, IN, ANY and IS; AND, OR, NOT and COALESCE
patterns, arrays        LIKE and other text operations; arrays
casts, functions        casts; function calls, by the types of their arguments
"""
