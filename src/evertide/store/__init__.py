"""Blob and Meta: the two small interfaces that everything durable rests on, and their implementations."""
