"""From Spark SQL to Evertide's plan; the only package that calls the JVM through py4j.

program     scripts and projects as statements, and their plans
catalyst    access to Spark's JVM
algebra     views as plans that can be maintained
fragment    parts of plans that are prepared to run
query       single queries that Spark answers
"""
