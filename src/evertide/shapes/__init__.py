"""Shapes: live, filtered subscriptions to tables and views, by Electric's protocol.

service   `ShapeService`: starts and stops serving shapes
options   the settings of a process that serves shapes
protocol  the protocol in our own types
http      requests and answers over HTTP
log       records, snapshots and logs of shapes
"""
