"""Staged calls and token records as Parquet segments: the only room of staging that loads pyarrow.

Nothing outside imports its modules one by one, but for the names that are given here.
"""
