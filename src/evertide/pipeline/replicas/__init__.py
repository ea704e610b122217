"""Several replicas of a pipeline on one storage.

leadership     takes the lead, and promotes a read-only replica
leader_tasks   the work that only the leader does
peer_follower  replays the transactions that peers commit
liveness       detects a process that hangs
"""
