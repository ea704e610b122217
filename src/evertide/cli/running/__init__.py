"""Parts that the commands `run`, `demo` and `shapes` share.

open_pipeline  opens a pipeline and its Spark session, and stops it by signals, even if storage does not answer
consent        asks the user before a script changes a storage in a risky way
serve          the HTTP server of a pipeline, its options, metrics, logs and traces
"""
