"""The output of commands.

output  tables and sentences for people, JSON for programs, errors, progress bars
live    the live display of a running pipeline
logs    the log on standard error
"""
