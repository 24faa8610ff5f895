"""Attempts from their start to their durable record, and the rules by which rows run again."""
