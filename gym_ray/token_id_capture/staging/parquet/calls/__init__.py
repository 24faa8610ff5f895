"""Staged calls as rows of segments: a sink, a source, retirement, and the way between two processes."""
