"""Finds a call's parent: by conversation, proved by tokens, from files or from memory."""
