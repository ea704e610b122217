"""Single queries that Spark answers.

query         checks and runs a query
spark_errors  explains errors of Spark's parser and analyzer
functions     the functions that a query may call
"""
