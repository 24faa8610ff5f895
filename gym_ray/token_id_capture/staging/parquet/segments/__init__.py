"""Segments: how they are named, laid out, committed in groups, written and read; whatever their rows are."""
