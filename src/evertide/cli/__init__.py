"""The command `evertide`.

main       the commands and their global options
commands   one module per group of commands
options    options that several commands share, and `--set NAME=VALUE`
target     what a command works on: a storage or a server
running    what `run`, `demo` and `shapes` start: Spark, the pipeline, the server
output     tables, JSON, progress and logs
recompute  compares views with their recomputation by Spark
"""
