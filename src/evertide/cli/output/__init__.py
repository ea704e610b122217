"""The output of commands.

output    tables and sentences for people, JSON for programs, errors, progress bars
excerpts  errors for people, with the line of the script
live      the live display of a running pipeline
logs      the log on standard error
"""
