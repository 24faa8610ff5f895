"""What happens to one training call on its way to a sink: its context, its record, its marks."""
