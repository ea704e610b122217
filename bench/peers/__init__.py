"""Compares Evertide with other engines: the same data, the same queries, the same machine, in one run.

contest, report             runs the measurements, and compares results; the report (`svg`: plots, `publication`: page)
jobs, process, worker       a job and its result; the process of a job; runs a job of our own environment
starter, installation       starts the process of each engine; installs Flink and Pathway
nexmark, agreement          Nexmark's events and refreshes; compares two results
engine_*                    Evertide, Spark and DuckDB
flink_*, pathway_*          Flink and Pathway, in separate environments (`worker_output`: their output)
"""
