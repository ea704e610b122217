"""Converts Catalyst's optimized plan of a view to Evertide's plan, which the circuit maintains.

algebra            the conversion, operator by operator
nodes              the kinds of operators
plan_columns       columns of a plan as Arrow types
aggregates         Aggregates, split by how their functions are maintained
conditions         keys in the conditions of joins
deduplicate        dropDuplicates as a window
distinct           undoes Spark's rewrite of several DISTINCT aggregates
session_windows    session windows as a column
order              independence of the order of rows
sharing            equal parts of a plan as one node
refusals           queries that cannot be maintained
row_key            the key of a view, derived from its plan
node_fingerprints  fingerprints of operators
description        operators as texts
"""
