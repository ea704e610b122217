"""Scripts and projects: what they declare, and the plans of their views.

program         a script or project as plans
script          splits a script into statements
error_list      collects the errors of a script
script_errors   errors of Spark as errors of a script, with their position and a remedy
statements      statements as values, without STREAM in their queries
flows           streaming tables as views of what feeds them
properties      TBLPROPERTIES of Evertide
catalog         tables and views for Spark's analyzer
view_function   views that are written in Python
project         a project as files
project_files   reads the files of a project
project_inputs  spark.read in a project
"""
