"""Electric's protocol in words of our own: what is asked for, places in a log, and how something is refused."""
