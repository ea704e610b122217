"""The HTTP server of one running pipeline.

http       the server, the app, endpoints as values, error responses, the OpenAPI document
endpoints  one module per group of addresses
bodies     request bodies as rows, and their size in memory
query      SQL queries by DuckDB or Spark, in separate processes
access     tokens, roles, TLS, limits
"""
