"""The commands about jobs: submit, status, logs, stop; and what they share."""
