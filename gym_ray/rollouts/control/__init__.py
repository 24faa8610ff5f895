"""Steering and watching a live run by files beside its output: no port, no cluster, only the storage is shared."""
