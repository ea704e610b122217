"""The HTTP server of one running pipeline. Imports only go down this list (`.importlinter`).

server      an app on a socket, in a thread; the app that answers while the pipeline opens
app         the app of a pipeline
shapes_app  the app of a process that serves only shapes
query       SQL queries by DuckDB or Spark, in separate processes
endpoints   one module per group of addresses
bodies      request bodies as rows, and their size in memory
access      tokens, roles, TLS, limits
http        endpoints as values, error responses, the OpenAPI document
"""
