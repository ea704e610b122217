"""Reading a pipeline's collections.

collections   tables and views as of a time
reader        a storage as a process sees it that does not run the pipeline
query         queries and their results
"""
