"""Delivery of collections to sinks.

delivery_threads  all sinks of a pipeline, one thread for each
delivery          the delivery to one sink
sink_changes      the changes that a sink receives, in pieces that fit into memory
sink_record       the durable position of a sink
sink_status       how far a sink is, and what is wrong with it
"""
