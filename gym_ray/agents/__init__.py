"""What runs a row."""
