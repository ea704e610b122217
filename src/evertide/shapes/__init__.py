"""Live, filtered subscriptions to every table and view."""
