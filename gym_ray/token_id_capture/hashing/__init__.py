"""The bytes under the hashes of conversations: one canonical form for each item, and fast paths to it."""
