"""Progress: how far all consumers durably are."""
