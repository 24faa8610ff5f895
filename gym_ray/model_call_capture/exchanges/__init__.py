"""One exchange: what went over the wire, how it ended, what is hidden of it, and the line that it becomes."""
