"""Fragments of a plan that are prepared to run.

fragment          a fragment, and the choice between a run over few and over many rows
forms             forms of a fragment with an outer join
condenser         condenses the rows of a large run for a reader that only adds them up
condensed_column  a column of condensed rows: grouping, measuring, decoding
local_runner      runs over few rows, in one call to the JVM (LocalRunner.java)
"""
