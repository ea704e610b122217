"""Bodies of requests as rows, and how much memory each takes, known before it is decoded."""
