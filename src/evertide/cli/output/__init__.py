"""The output of commands.

live_display  the live display of a running pipeline
output        tables and sentences for people, JSON for programs, errors, progress bars
logs          the log on standard error
"""
