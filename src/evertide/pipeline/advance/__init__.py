"""One transaction after the other, with the peers.

loop        makes transactions until the pipeline stops
advancer    makes the next transaction, or replays a peer's
run_thread  makes transactions in a thread of its own
"""
