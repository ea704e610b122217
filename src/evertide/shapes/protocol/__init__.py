"""Electric's protocol in our own types: requests, offsets and refusals."""
