"""Access to Spark's JVM from Python.

session          the Spark session of a pipeline
network          network settings of a new session, and a check of a given one
catalyst         builds and runs Catalyst's operators and expressions
jobs             jobs whose tasks run Python functions, alone or around Catalyst's operators
walk             walks Catalyst's trees, converts Scala's collections
parsed           finds all operators of a parsed plan
canonical        expressions as plain values, for fingerprints
python_function  Python functions as plain values, for fingerprints
result_settings  settings of Spark that can change results
failure          classifies and describes errors of Spark
driver           progress of Spark's jobs, memory of the driver, scheduler pools
"""
