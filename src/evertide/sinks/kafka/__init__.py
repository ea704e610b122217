"""The Kafka sink: changes of collections as records of topics, written exactly once.

sink     the sink: open, write, errors
records  the records of a transaction, in each envelope
end      the newest transaction of a sink in a topic
"""
