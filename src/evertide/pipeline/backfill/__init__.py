"""Hydration of views while transactions continue.

backfill    computes views and makes them members
scheduler   decides which views are backfilled, and when
"""
