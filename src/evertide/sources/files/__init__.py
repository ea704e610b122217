"""The connector `files`: a directory whose files are read once each. `source` is its door."""
