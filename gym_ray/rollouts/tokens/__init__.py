"""Puts exact tokens into records, and deletes what earlier attempts left of them."""
