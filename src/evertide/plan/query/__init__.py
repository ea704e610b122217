"""Single queries that Spark answers.

query      checks and runs a query
functions  the functions that a query may call
"""
