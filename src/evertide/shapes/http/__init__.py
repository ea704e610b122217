"""`/v1/shape` over HTTP: parse requests, limit concurrency, and answer."""
