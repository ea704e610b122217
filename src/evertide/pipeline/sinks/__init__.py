"""Delivery to sinks: one thread and one durable record per sink, and the changes that it gets."""
