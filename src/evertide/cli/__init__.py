"""The command `evertide`.

main       the commands and their global options
commands   one module per group of commands
options    options that several commands share
settings   `--set NAME=VALUE`
target     what a command works on: a storage or a server
running    what `run`, `demo` and `shapes` start: Spark, the pipeline, the server
output     tables, JSON, progress and logs
files      files that `push` reads
changes    changes that `subscribe` prints
recompute  a comparison of views with their recomputation
"""
