"""Views computed beside the transactions (`backfill`), and which of them are due (`scheduler`)."""
