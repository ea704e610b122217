"""Sinks: where collections are written to, one module per connector behind one small contract."""
