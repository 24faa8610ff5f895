"""Media of calls: turned into bytes that can be read back, and read back."""
