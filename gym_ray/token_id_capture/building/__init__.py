"""Builds chains from records: proofs, links, retries, the terminal call, and the response that a chain projects to."""
