"""Rows, attempts, the run log and its metrics."""
