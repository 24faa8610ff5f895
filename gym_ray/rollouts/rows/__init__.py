"""From an input file to the rows of a run, and each row by its number."""
