"""Object stores behind fsspec: one backend a kind, and what makes a put atomic on each."""
