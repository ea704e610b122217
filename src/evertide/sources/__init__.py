"""Sources: one module per connector, behind one small contract (`evertide.sources.contract`)."""
