"""`/v1/shape` over HTTP: what comes in, what is answered, and how many are served at a time."""
