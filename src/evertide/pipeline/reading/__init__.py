"""Reading a pipeline's collections, from inside the process that runs it or from another (`reader`)."""
