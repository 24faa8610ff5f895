"""The HTTP service in front of an engine: three generation routes, captured."""
