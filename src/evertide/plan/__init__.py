"""From Spark SQL to our own plan: the only room that touches the JVM through py4j."""
