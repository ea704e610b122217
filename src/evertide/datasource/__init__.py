"""`spark.read.format("evertide")`: read tables and views at any time, in any Spark session.

    request    the options
    condition  the option `where`, applied to statistics and to rows
    planning   choose a time, take a lease, split the parts into tasks
    task       read one task, on an executor
    source     the two classes that Spark calls

`evertide.shard.parts.split` divides parts into tasks that can be read independently.

Spark 4.3 pushes no columns into a Python data source. It can push filters, but keeps the filters of one query for every
other query over the same DataFrame, which would then miss rows. So the data source accepts none: the options `columns`
and `where` select what is read (docs/decisions/0006).
"""
