"""What a run keeps on disk: records, frames, indices; how it begins, is taken up again and is repaired."""
