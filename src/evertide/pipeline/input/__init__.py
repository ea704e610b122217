"""What a transaction is made of: sources and their offers, pushed rows, and where each source stands."""
