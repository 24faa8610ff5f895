"""Token records of model servers as segments: a sink, a source and a finder of parents."""
