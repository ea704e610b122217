"""`spark.read.format("evertide")`: a pipeline's tables and views, at any time, as DataFrames of any Spark.

    request    what the options ask for
    condition  the option `where`: what it means for statistics, and for rows
    planning   one time, a lease, the parts, cut into tasks
    split      how parts become tasks that can be read apart (pure)
    task       reading one task, on an executor
    source     the two classes that Spark calls

Spark 4.3 pushes no columns into a data source in Python. It can push filters, but keeps what one query pushed for every
other query over the same DataFrame, which would then miss rows: so nothing is taken from it, and the options `columns`
and `where` say what is to be read (docs/decisions/0006).
"""
