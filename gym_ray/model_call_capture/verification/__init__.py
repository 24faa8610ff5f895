"""Whether a capture directory is as it should be: every file, line, marker and log of it."""
