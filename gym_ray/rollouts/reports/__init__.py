"""What is said of the records of a run when it has ended."""
