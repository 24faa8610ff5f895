"""An inference worker: an engine whose tokens are staged durably before its answer leaves."""
