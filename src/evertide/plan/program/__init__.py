"""Scripts and projects: what they declare, and the plans of their views.

program         a script or project as plans
fingerprint     fingerprints of views and pipelines
flows           streaming tables as views of what feeds them
properties      TBLPROPERTIES of Evertide
view_function   views that are written in Python
project         a project as files
project_files   reads the files of a project
project_inputs  spark.read in a project
"""
