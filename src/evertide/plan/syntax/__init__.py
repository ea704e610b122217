"""Checks the syntax of a query without a JVM, by the grammar of the installed Spark.

check    refuses a query that Spark's parser refuses
tokens   splits a text into tokens, as Spark's lexer does
grammar  reads the grammar from Spark's jar
"""
