"""What is known of each row of a run: what failed, what comes next, and whether it may run again."""
