"""Evertide beside what people would use instead: the same data, the same queries, the same machine, in one run."""
