"""Joins records of a finished run again with what their captures hold by now."""
