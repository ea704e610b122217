"""Runs pipelines: tables and views that are maintained as their input changes.

pipeline         `Pipeline`, the public API
process_context  the components that a process has once
definition       the stored tables and views, and their shards
script_change    what a script changes in a storage, for people
column_changes   which changes of a table's columns are refused
engine           the interface to what computes views
spark_engine     the engine on Spark
script           reads a script: text, a file or a project
names            names that readers need, too
pause            whether new transactions are paused
advance          one transaction after the other, with the peers
transaction      bind, compute and commit
input            sources and pushes
recovery         opening and replay
backfill         hydration while transactions continue
replicas         leader and followers
sinks            delivery to sinks
maintenance      checkpoints and garbage collection
status           what a pipeline is doing, and what is wrong
state            the state of tables and views between two transactions
records          what processes report to each other
reading          reading collections
"""
