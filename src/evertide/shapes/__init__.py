"""Shapes: live, filtered subscriptions to tables and views, by Electric's protocol."""
