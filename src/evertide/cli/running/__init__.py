"""Parts that the commands `run`, `demo` and `shapes` share.

open_pipeline  opens a pipeline and its Spark session, and stops it by signals
consent        asks the user before a script changes a storage in a risky way
silence        ends a command whose storage does not answer
serve          the HTTP server of a pipeline, its options, metrics, logs and traces
"""
