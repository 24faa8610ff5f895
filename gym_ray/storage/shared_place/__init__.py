"""Whether a place is one and the same for several nodes, and what each may rely on there."""
