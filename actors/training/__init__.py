"""The collector that a training loop calls, and what it needs in the cluster."""
