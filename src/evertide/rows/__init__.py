"""The row algebra: rows with a diff (`changes`), digests, slices, exact equality, Arrow's memory (`columns`)."""
