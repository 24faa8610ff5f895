"""Looking after a store: what it holds, and putting small segments together."""
