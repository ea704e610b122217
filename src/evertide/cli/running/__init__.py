"""Parts that the commands `run`, `demo` and `shapes` share.

open_pipeline   opens a pipeline, and stops it by signals
consent         asks the user before a script changes a storage in a risky way
silence         ends a command whose storage does not answer
spark           the Spark session of a command
serve           the HTTP server of a pipeline
listen_options  the options for tokens, TLS and hosts
observers       metrics, logs and traces
"""
