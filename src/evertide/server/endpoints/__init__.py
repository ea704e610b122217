"""The endpoints, one module per group of addresses.

health        /v1/health, /v1/status, /v1/checkpoints, /v1/logs
collections   /v1/collections, /v1/tables, /v1/views, /v1/views/{name}/explain, /v1/graph
rows          /v1/.../rows and /v1/.../changes, read
push          /v1/tables/{name}/rows and /v1/transactions, write
transactions  /v1/transactions/begin, and the transactions that clients hold open
journal       /v1/transactions, /v1/journal, /v1/errors
events        /v1/events
control       /v1/pause, /v1/resume, /v1/views/{name}/retry
shapes        /v1/shapes
content       the rows and columns that a request selects
formats       rows as JSON, CSV, Arrow or Parquet, and their columns
history       the transactions that this process saw, and their durations
"""
