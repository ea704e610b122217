"""The journal: which input each transaction holds. `evertide.journal.journal` is the way in."""
