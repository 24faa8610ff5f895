"""Worker-owned staging: tokens made durable by the process that generated them, before its answer leaves (C)."""
