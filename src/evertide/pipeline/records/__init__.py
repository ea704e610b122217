"""The records by which the processes of a pipeline tell each other what they are and how they are.

ownership       registers the processes that run a pipeline, and reads which of them leads
state_record    the record of the leader's state
source_record   the record of the state of sources and sinks
replica_record  the record in which each replica reports its role and progress
"""
