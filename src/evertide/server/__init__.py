"""HTTP in front of a pipeline. `evertide.server.app` lists the addresses, `evertide.server.serving` runs it."""
