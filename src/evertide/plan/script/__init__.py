"""The statements of a script, and the catalog in which Spark analyzes their queries.

statement_splitter  splits a script into statements
statements          statements as values, without STREAM in their queries
error_list          collects the errors of a script
script_errors       errors of Spark's parser as errors of a script
catalog             tables and views for Spark's analyzer
"""
