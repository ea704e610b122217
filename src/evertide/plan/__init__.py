"""From Spark SQL to Evertide's plan; the only package that calls the JVM through py4j.

Imports only go down this list (`.importlinter`):

program   scripts and projects as plans
fragment  parts of plans that are prepared to run
algebra   views as plans that can be maintained
script    the statements of a script, and the catalog for Spark's analyzer
query     single queries that Spark answers
catalyst  access to Spark's JVM
syntax    the syntax of a query, checked without a JVM
"""
