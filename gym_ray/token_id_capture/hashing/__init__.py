"""The bytes under the hashes of conversations: one canonical form an item, and short ways to it."""
