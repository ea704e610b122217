"""What a pipeline is doing, and what is wrong with it.

status          the status of a pipeline, and its reading from storage
process_state   the state of the process that runs a pipeline
report          the status as lines and tables for people
stored_facts    the part of a status that a running process reads from storage
"""
