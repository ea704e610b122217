"""Several replicas of a pipeline on one storage.

ownership       registers the processes that run a pipeline, and reads which of them leads
leadership      takes the lead, and promotes a read-only replica
leader_tasks    the work that only the leader does
peer_follower   replays the transactions that peers commit
liveness        detects a process that hangs
replica_record  the record in which each replica reports its role and progress
"""
