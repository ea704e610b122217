"""Runs pipelines: tables and views that are maintained as their input changes.

Imports only go down this list (`.importlinter`):

pipeline         `Pipeline`, the public API

advance        one transaction after the other, with the peers
reading        reading collections
script_reader  reads a script: text, a file or a project
script_change  what a script changes in a storage, for people
spark_engine   the engine on Spark

recovery         opening and replay
status           what a pipeline is doing, and what is wrong
replicas         leader and followers

backfill         hydration while transactions continue
maintenance      checkpoints and garbage collection

sinks            delivery to sinks
transaction      bind, compute and commit

input            sources and pushes
state            the state of tables and views between two transactions

records          what processes report to each other

definition       the stored tables and views, and their shards
process_context  the components that a process has once

column_changes   which changes of a table's columns are refused
engine           the interface to what computes views
names            names that readers need, too
pause            whether new transactions are paused
"""
