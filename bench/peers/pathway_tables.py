"""The columns of Nexmark's tables that each query reads in Pathway, and their types."""

from __future__ import annotations

TEXTS = frozenset({"channel", "url", "extra", "name", "city", "state", "itemName", "description", "value"})
"""The columns with texts; all others are integers."""

_BID = "auction bidder price channel url dateTime extra"
AUCTION = "number itemName description initialBid reserve dateTime expires seller category extra"
READ: dict[str, dict[str, str]] = {
    "q0": {"bid": "auction bidder price dateTime extra"},
    "q1": {"bid": "auction bidder price dateTime extra"},
    "q2": {"bid": "auction price"},
    "q3": {"auction": "number seller category", "person": "number name city state"},
    "q4": {"auction": "number dateTime expires category", "bid": "auction price dateTime"},
    "q5": {"bid": "auction dateTime"},
    "q6": {"auction": "number dateTime expires seller", "bid": "auction price dateTime"},
    "q7": {"bid": "auction bidder price dateTime extra"},
    "q8": {"person": "number name dateTime", "auction": "seller dateTime"},
    "q9": {"auction": AUCTION, "bid": "auction bidder price dateTime extra"},
    "q12": {"bid": "bidder dateTime"},
    "q13": {"bid": "auction bidder price dateTime", "side_input": "key value"},
    "q14": {"bid": "auction bidder price dateTime extra"},
    "q15": {"bid": "auction bidder price dateTime"},
    "q16": {"bid": "auction bidder price channel dateTime"},
    "q17": {"bid": "auction price dateTime"},
    "q18": {"bid": _BID},
    "q19": {"bid": _BID},
    "q20": {"bid": _BID, "auction": AUCTION},
    "q21": {"bid": "auction bidder price channel url"},
    "q22": {"bid": "auction bidder price channel url"},
}
"""By query, the columns that it reads of each table; other columns are not parsed."""
