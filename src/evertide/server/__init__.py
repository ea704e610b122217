"""HTTP in front of a pipeline. `evertide.server.http.app` lists the addresses, `evertide.server.http.server` runs
it."""
