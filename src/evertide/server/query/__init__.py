"""SQL queries over all collections at one time, for HTTP and the command line.

endpoint        `POST /v1/query`
workers         the worker processes, and which of them answers
worker_process  a worker process, as the server sees it, and the memory and disk that it takes
worker          the start of a worker process
answering       the loop of a worker process
wire            frames between server and worker
isolation       what a worker process may reach
bounds          memory limits of queries and of Spark
duck_query      a query by DuckDB
name_check      refuses misspelled functions and columns before Spark starts
duck            the DuckDB connection and its limits
duck_functions  the functions of DuckDB that a query may call
spark_query     a query by Spark
translation     Spark's queries, rewritten so that DuckDB gives the same answer
"""
